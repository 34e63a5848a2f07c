"""Reading certificates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.identity.errors import InvalidCertificate
from nodenet.identity.issuing import make_root
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import Certificate
from tests.unit.identity.authority import Authority

CART = Identity("cluster.local", "shop", "cart")
NOW = 1_800_000_000.0
ROOT = make_root(NOW).certificate


def test_pem_and_der_are_one(authority: Authority) -> None:
    leaf = authority.certificate(CART, ttl=600, now=NOW).leaf
    assert leaf.pem.startswith("-----BEGIN CERTIFICATE-----\n") and leaf.pem.endswith("-----\n")
    (again,) = Certificate.parse_pem(leaf.pem)
    for other in (again, Certificate.parse(leaf.der)):
        assert other.der == leaf.der and other.pem == leaf.pem
        assert (other.serial, other.uris) == (leaf.serial, (str(CART),))
        assert (other.not_before, other.not_after) == (NOW - 60, NOW + 600)
        assert other.issuer == authority.root.certificate.subject
    assert leaf.middle == NOW + 270


def test_a_bundle_is_read_in_its_order_with_text_between() -> None:
    other = make_root(NOW).certificate
    text = f"# one\n{ROOT.pem}\n  two:\n{other.pem}"
    assert [c.der for c in Certificate.parse_pem(text)] == [ROOT.der, other.der]
    assert Certificate.parse_pem("") == Certificate.parse_pem("nothing here") == ()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_certificate_or_a_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidCertificate):
        Certificate.parse(data)


@pytest.mark.filterwarnings("ignore")  # the library has its own about odd serials and names
def test_a_damaged_certificate_is_read_or_a_typed_error(authority: Authority) -> None:
    der = authority.certificate(CART).leaf.der
    read = refused = 0
    for at in range(len(der)):
        for bit in range(8):
            data = bytearray(der)
            data[at] ^= 1 << bit
            try:
                certificate = Certificate.parse(bytes(data))
                assert isinstance(certificate.public_key_der, bytes)
                read += 1
            except InvalidCertificate as error:
                assert "\n" not in str(error)
                refused += 1
    assert read > 100 and refused > 100  # nobody looks at the signature here
