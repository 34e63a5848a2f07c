"""Files of TLS that cannot be used: which one, and why."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from nodenet.konnectivity.tls_files import (
    Loading,
    TlsUnusable,
    load_authorities,
    load_pair,
    why_no_file,
)
from nodenet.tls.context import Context, Side
from tests.interop.certificates import Authority


@pytest.fixture(params=["ssl", "nodenet.tls"])
def context(request: pytest.FixtureRequest) -> Callable[[], Loading]:
    """Makes what takes files, of either kind."""
    if request.param == "ssl":
        return lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return lambda: Context(Side.SERVER)


def test_what_is_right_is_taken(tmp_path: Path, context: Callable[[], Loading]) -> None:
    authority = Authority("ca")
    pair = authority.issue(tmp_path, "one")
    load_authorities(context(), authority.write(tmp_path / "ca"))
    load_pair(context(), pair.cert, pair.key)
    together = tmp_path / "together"
    together.write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    load_pair(context(), together, together)


def test_the_wrong_one_of_two_files_is_named(
    tmp_path: Path, context: Callable[[], Loading]
) -> None:
    authority = Authority("ca")
    one, two = authority.issue(tmp_path, "one"), authority.issue(tmp_path, "two")
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("no PEM")
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for cert, key, path, words in (
        (one.cert, rubbish, rubbish, "no private key"),
        (rubbish, one.key, rubbish, "no certificate"),
        (one.cert, two.key, two.key, f"not the key of {one.cert}"),
        (one.key, one.cert, one.key, "no certificate"),
        (broken, one.key, broken, "cannot use"),
        (one.cert, tmp_path / "nowhere", tmp_path / "nowhere", "no such file"),
        (one.cert, tmp_path, tmp_path, "is a directory"),
        (one.cert, tmp_path / ("x" * 300), tmp_path / ("x" * 300), "file name too long"),
    ):
        with pytest.raises(TlsUnusable, match="cannot use") as caught:
            load_pair(context(), cert, key)
        assert caught.value.path == path and words in caught.value.message
        assert "_ssl.c" not in caught.value.message


@pytest.mark.parametrize("text", ["", "no PEM", "-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_file_without_a_ca(tmp_path: Path, context: Callable[[], Loading], text: str) -> None:
    path = tmp_path / "ca"
    path.write_text(text)
    with pytest.raises(TlsUnusable, match=f"cannot use {path}: it has no certificate"):
        load_authorities(context(), path)


@pytest.mark.parametrize(
    "kind", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL]
)
def test_nobody_is_asked_for_a_passphrase(
    tmp_path: Path, context: Callable[[], Loading], kind: serialization.PrivateFormat
) -> None:
    pair = Authority("ca").issue(tmp_path, "one")
    key = load_pem_private_key(pair.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, secret))
    with pytest.raises(TlsUnusable, match="it is encrypted"):
        load_pair(context(), pair.cert, pair.key)


def test_why_a_path_is_no_file(tmp_path: Path) -> None:
    assert why_no_file(Path(__file__)) is None
    assert why_no_file(tmp_path / "nowhere") == "no such file"
    assert why_no_file(tmp_path) == "is a directory"
    assert why_no_file(Path("/dev/null")) == "not a file"
    assert why_no_file(tmp_path / ("x" * 300)) == "file name too long"
    assert why_no_file(Path(__file__) / "x") == "not a directory"
    assert why_no_file(Path("a\0b")) == "embedded null byte"
