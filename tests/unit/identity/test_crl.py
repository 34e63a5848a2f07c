"""Revocation lists: reading, and what they say about a peer's chain."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.crl import CrlInvalid, Revocations, read_lists
from nodenet.identity.errors import CertificateRevoked, TlsError
from nodenet.identity.issuing import Issuer
from nodenet.identity.keys import HASH
from nodenet.identity.peer import peer_chain
from nodenet.identity.spiffe import Identity
from nodenet.identity.tls import TlsContexts
from nodenet.identity.x509 import Certificate
from tests.unit.identity.authority import Authority, crl_pem, make_crl, shake

CART = Identity("cluster.local", "shop", "cart")
BANK = Identity("cluster.local", "bank", "vault")


@pytest.fixture(scope="module")
def above() -> Authority:
    return Authority.with_intermediate()


def _der(issuer: Issuer, *serials: int) -> bytes:
    return make_crl(issuer, serials).public_bytes(serialization.Encoding.DER)


def _chain(workload: WorkloadCertificate) -> tuple[Certificate, ...]:
    return (workload.leaf, *workload.intermediates, *workload.roots)


@pytest.mark.parametrize("encode", [crl_pem, _der])
def test_lists_stand_one_after_the_other(authority: Authority, encode: object) -> None:
    other = Authority().root
    assert callable(encode)
    one, two = encode(authority.root, 7, 9), encode(other)
    lists = read_lists(one + two)
    assert [one.serials for one in lists] == [{7, 9}, set()]
    assert [one.is_signed_by(authority.root.certificate) for one in lists] == [True, False]
    assert lists[1].is_signed_by(other.certificate)
    assert "nodenet root" in lists[0].issuer


def test_a_list_of_many_is_read(authority: Authority) -> None:
    (read,) = read_lists(_der(authority.root, *range(1, 3000)))  # a length of three bytes
    assert read.serials == frozenset(range(1, 3000))


@pytest.mark.parametrize("empty", [b"", b"\n", b"  \n\t\n"])
def test_an_empty_file_revokes_nothing(authority: Authority, empty: bytes) -> None:
    assert read_lists(empty) == ()
    Revocations(read_lists(empty)).check(_chain(authority.certificate(CART)))


def test_text_and_other_blocks_around_are_skipped(authority: Authority) -> None:
    data = (
        b"# ours\n" + authority.root.certificate.pem.encode() + crl_pem(authority.root, 3) + b"\n"
    )
    assert [one.serials for one in read_lists(data)] == [{3}]


def test_what_is_no_list_is_a_typed_error(authority: Authority) -> None:
    pem, der = crl_pem(authority.root, 5), _der(authority.root, 5)
    for data in (
        b"hello",
        b"0",
        b"0\x84",
        der[:-1],
        der + b"x",
        der + der[:40],
        b"\x30\x00",
        authority.root.certificate.der,
        authority.root.certificate.pem.encode(),
        pem[:60],
        pem.replace(b"M", b"!", 1),
    ):
        with pytest.raises(CrlInvalid):
            read_lists(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_lists_or_a_typed_error(data: bytes) -> None:
    for text in (data, b"0\x82" + data, b"-----BEGIN X509 CRL-----\n" + data):
        try:
            read_lists(text)
        except CrlInvalid as error:
            assert str(error)


@pytest.mark.filterwarnings("ignore")  # the library has its own about odd names
def test_a_damaged_list_counts_for_nothing_or_is_a_typed_error(authority: Authority) -> None:
    own = authority.certificate(CART)
    der = _der(authority.root, own.leaf.serial)
    signed = x509.load_der_x509_crl(der).tbs_certlist_bytes
    start = der.index(signed)
    for at in range(len(der)):
        for bit in range(8):
            data = bytearray(der)
            data[at] ^= 1 << bit
            try:
                found = Revocations(read_lists(bytes(data))).revoked(_chain(own))
            except CrlInvalid as error:
                assert str(error)
                continue
            # around the signed part one bit means nothing: padding of the signature
            assert found is None or not start <= at < start + len(signed)


@pytest.mark.parametrize(
    ("extension", "reason"),
    [
        (x509.DeltaCRLIndicator(1), "delta"),
        (
            x509.IssuingDistributionPoint(None, None, False, False, None, True, False),
            "indirect",
        ),
    ],
)
def test_lists_that_are_not_whole_are_refused(
    authority: Authority, extension: x509.ExtensionType, reason: str
) -> None:
    crl = make_crl(authority.root, [1], (extension, True))
    with pytest.raises(CrlInvalid, match=reason):
        read_lists(crl.public_bytes(serialization.Encoding.DER))


def test_a_list_for_some_certificates_still_counts(authority: Authority) -> None:
    own = authority.certificate(CART)
    users = x509.IssuingDistributionPoint(None, None, True, False, None, False, False)
    crl = make_crl(authority.root, [own.leaf.serial], (x509.CRLNumber(4), False), (users, True))
    lists = read_lists(crl.public_bytes(serialization.Encoding.DER))
    assert Revocations(lists).revoked(_chain(own)) is own.leaf


def test_a_revoked_leaf_is_found(authority: Authority) -> None:
    revoked, fine = authority.certificate(CART), authority.certificate(CART)
    lists = Revocations(read_lists(crl_pem(authority.root, 1, revoked.leaf.serial)))
    with pytest.raises(CertificateRevoked) as caught:
        lists.check(_chain(revoked))
    assert (
        str(caught.value)
        == caught.value.line()
        == ("connection closed: peer certificate revoked by CRL")
    )
    assert caught.value.message == str(caught.value)
    assert isinstance(caught.value, TlsError) and caught.value.serial == revoked.leaf.serial
    lists.check(_chain(fine))
    lists.check(())


def test_a_revoked_intermediate_takes_its_leaves_with_it(above: Authority) -> None:
    assert above.intermediate is not None
    own, between = above.certificate(CART), above.intermediate.certificate
    lists = Revocations(read_lists(crl_pem(above.root, between.serial)))
    assert lists.revoked(_chain(own)) is between
    # the root's own leaf with the same authority is not concerned
    assert lists.revoked(_chain(Authority(above.root).certificate(CART))) is None


def test_a_leaf_is_revoked_by_its_issuer_and_nobody_else(above: Authority) -> None:
    assert above.intermediate is not None
    own = above.certificate(CART)
    serial = own.leaf.serial
    by_root = Revocations(read_lists(crl_pem(above.root, serial)))
    assert by_root.revoked(_chain(own)) is None
    by_issuer = Revocations(read_lists(crl_pem(above.intermediate, serial)))
    assert by_issuer.revoked(_chain(own)) is own.leaf


def test_a_forged_list_counts_for_nothing(authority: Authority) -> None:
    """The issuer's name, another key."""
    own = authority.certificate(CART)
    forger = Issuer(key=Authority().root.key, certificate=authority.root.certificate)
    lists = Revocations(read_lists(crl_pem(forger, own.leaf.serial)))
    assert lists.revoked(_chain(own)) is None
    assert len(lists.unsigned([authority.root.certificate])) == 1


def test_a_certificate_that_may_not_sign_lists_signs_none(authority: Authority) -> None:
    own = authority.certificate(CART)
    posing = Issuer(key=own.key, certificate=own.leaf)
    name = make_crl(authority.root, [])
    (lists,) = read_lists(name.public_bytes(serialization.Encoding.DER))
    assert not lists.is_signed_by(posing.certificate)
    (made,) = read_lists(
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.root.certificate.library().subject)
        .last_update(name.last_update_utc)
        .next_update(name.last_update_utc.replace(year=2100))
        .sign(own.key.signer, HASH)
        .public_bytes(serialization.Encoding.DER)
    )
    assert not made.is_signed_by(own.leaf)


def test_lists_of_one_issuer_are_added_up(authority: Authority) -> None:
    own, other = authority.certificate(CART), authority.certificate(CART)
    data = crl_pem(authority.root, own.leaf.serial) + crl_pem(authority.root, other.leaf.serial)
    lists = Revocations(read_lists(data))
    assert lists.revoked(_chain(own)) and lists.revoked(_chain(other))


def test_a_leaf_alone_is_looked_up_by_known_issuers(authority: Authority) -> None:
    own = authority.certificate(CART)
    lists = Revocations(read_lists(crl_pem(authority.root, own.leaf.serial)))
    assert lists.revoked((own.leaf,)) is None
    strangers = [Authority().root.certificate]
    assert lists.revoked((own.leaf,), strangers) is None
    assert lists.revoked((own.leaf,), [*strangers, authority.root.certificate]) is own.leaf


def test_the_number_of_issuers_kept_is_bounded(authority: Authority) -> None:
    own = authority.certificate(CART)
    lists = Revocations(read_lists(crl_pem(authority.root, own.leaf.serial)))
    lists._by_issuer.update((str(n).encode(), frozenset()) for n in range(256))
    assert lists.revoked(_chain(own)) is own.leaf
    assert len(lists._by_issuer) == 1


@pytest.mark.parametrize("revoked", ["leaf", "intermediate", "nothing"])
def test_the_chain_of_a_real_handshake_is_checked(above: Authority, revoked: str) -> None:
    assert above.intermediate is not None
    contexts = TlsContexts()
    server, client = above.certificate(BANK), above.certificate(CART)
    ends = shake(contexts.server(server), contexts.client(client))
    issuer, serial = {
        "leaf": (above.intermediate, client.leaf.serial),
        "intermediate": (above.root, above.intermediate.certificate.serial),
        "nothing": (above.intermediate, 77),
    }[revoked]
    lists = Revocations(read_lists(crl_pem(issuer, serial)))
    if revoked == "nothing":
        lists.check(peer_chain(ends.server))
        return
    with pytest.raises(CertificateRevoked) as caught:
        lists.check(peer_chain(ends.server))
    assert caught.value.serial == serial
    if revoked == "leaf":
        lists.check(peer_chain(ends.client))  # the server's is not on it
