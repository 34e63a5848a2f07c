"""Private keys: their encoding, and that no text holds them."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from nodenet.identity.errors import InvalidKey
from nodenet.identity.keys import PrivateKey


def _pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def test_a_key_is_written_as_pkcs8_and_comes_back() -> None:
    key = PrivateKey.generate()
    assert key.pem().startswith(b"-----BEGIN PRIVATE KEY-----\n")
    assert PrivateKey.from_pem(key.pem()).public_der() == key.public_der()
    assert PrivateKey.generate().public_der() != key.public_der()


def test_repr_str_and_pickle_hold_nothing() -> None:
    key = PrivateKey.generate()
    assert repr(key) == str(key) == f"{key}" == "PrivateKey(P-256)"
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            attempt(key)


def test_what_is_no_key_is_refused_without_quoting_it() -> None:
    good = PrivateKey.generate().pem()
    lines = good.splitlines()
    damaged = b"\n".join([lines[0], lines[1][:-4] + b"!!!!", *lines[2:]])
    encrypted = PrivateKey.generate().signer.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )
    texts = [b"", b"hello", damaged, good[:100], encrypted]
    texts += [
        _pem(ec.generate_private_key(ec.SECP384R1())),
        _pem(ed25519.Ed25519PrivateKey.generate()),
    ]
    for text in texts:
        with pytest.raises(InvalidKey) as caught:
            PrivateKey.from_pem(text)
        shown = "".join(traceback.format_exception(caught.value))
        assert "P-256" in str(caught.value)
        for line in text.decode().splitlines()[1:-1]:
            assert line[:16] not in shown
