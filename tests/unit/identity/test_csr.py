"""Signing requests as the CA gets them; what it refuses is in test_ca.py."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from nodenet.identity.csr import make_csr, read_csr
from nodenet.identity.keys import PrivateKey
from nodenet.identity.spiffe import Identity

CART = Identity("cluster.local", "shop", "cart")


def test_a_request_has_no_subject_and_one_critical_name() -> None:
    key = PrivateKey.generate()
    csr = x509.load_pem_x509_csr(make_csr(key, CART).encode())
    assert csr.subject == x509.Name([])
    assert csr.signature_hash_algorithm is not None
    assert csr.signature_hash_algorithm.name == "sha256"
    assert csr.is_signature_valid
    (extension,) = csr.extensions
    assert extension.critical
    assert list(extension.value) == [x509.UniformResourceIdentifier(str(CART))]
    public = csr.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey) and public == key.public()


def test_a_request_is_read_back() -> None:
    key = PrivateKey.generate()
    request = read_csr(make_csr(key, CART))
    assert request.identity == CART and request.public_key == key.public()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_openssl_reads_it_the_same() -> None:
    text = subprocess.run(
        ["openssl", "req", "-noout", "-text", "-verify"],
        input=make_csr(PrivateKey.generate(), CART),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "X509v3 Subject Alternative Name: critical" in text
    assert f"URI:{CART}" in text
    assert "NIST CURVE: P-256" in text
