"""A workload's certificate with its key and chain."""

from __future__ import annotations

import pickle
import random
import time

import pytest
from cryptography import x509

from nodenet.identity.certificate import REFRESH_JITTER, WorkloadCertificate
from nodenet.identity.chain import CertificateChain
from nodenet.identity.csr import make_csr
from nodenet.identity.errors import CaResponseInvalid, SanMismatch
from nodenet.identity.issuing import make_intermediate, make_root
from nodenet.identity.keys import PrivateKey
from nodenet.identity.spiffe import Identity
from tests.unit.identity.authority import Authority

CART = Identity("cluster.local", "shop", "cart")
BANK = Identity("cluster.local", "bank", "vault")
NOW = 1_800_000_000.0


def test_its_fields_are_those_of_the_leaf(authority: Authority) -> None:
    own = authority.certificate(CART, ttl=600, now=NOW)
    assert (own.not_before, own.not_after) == (NOW - 60, NOW + 600)
    assert own.serial == str(own.leaf.library().serial_number)
    assert own.chain_pem == own.leaf.pem and own.roots_pem == authority.root.certificate.pem


def test_half_life_has_jitter_on_both_sides(authority: Authority) -> None:
    own = authority.certificate(CART, ttl=3600, now=NOW)
    rng = random.Random(1)
    life = own.not_after - own.not_before
    parts = [(own.refresh_at(rng) - own.not_before) / life for _ in range(500)]
    assert 0.5 - REFRESH_JITTER <= min(parts) < 0.46
    assert 0.54 < max(parts) <= 0.5 + REFRESH_JITTER


def test_an_intermediate_that_dies_first_ends_it(authority: Authority) -> None:
    root = make_root(NOW)
    above = Authority(root, make_intermediate(root, NOW - 364 * 86_400))
    own = above.certificate(CART, ttl=7 * 86_400, now=NOW)
    assert own.leaf.not_after == own.not_after == NOW + 86_400  # the CA capped it
    long = Authority(root).certificate(CART, ttl=7 * 86_400, now=NOW)
    assert above.intermediate is not None
    mixed = WorkloadCertificate(
        identity=CART,
        key=long.key,
        leaf=long.leaf,
        intermediates=(above.intermediate.certificate,),
        roots=long.roots,
    )
    assert mixed.not_after == NOW + 86_400 < mixed.leaf.not_after


def test_another_key_is_not_taken(authority: Authority) -> None:
    chain = authority.chain(make_csr(PrivateKey.generate(), CART))
    with pytest.raises(CaResponseInvalid, match="another key"):
        WorkloadCertificate.from_chain(CART, PrivateKey.generate(), chain, now=time.time())


def test_another_name_is_not_taken_unless_the_ca_decides(authority: Authority) -> None:
    key = PrivateKey.generate()
    chain = authority.chain(make_csr(key, BANK))
    with pytest.raises(SanMismatch):
        WorkloadCertificate.from_chain(CART, key, chain, now=time.time())
    WorkloadCertificate.from_chain(CART, key, chain, now=time.time(), check_name=False)


def test_one_name_more_is_another_name(authority: Authority) -> None:
    uri = x509.UniformResourceIdentifier
    own = authority.named(CART, [uri(str(CART)), uri(str(BANK))])
    chain = CertificateChain(leaf=own.leaf, roots=own.roots)
    with pytest.raises(SanMismatch):
        WorkloadCertificate.from_chain(CART, own.key, chain, now=time.time())


def test_what_is_over_is_not_taken(authority: Authority) -> None:
    key = PrivateKey.generate()
    chain = authority.chain(make_csr(key, CART), 60, NOW)
    WorkloadCertificate.from_chain(CART, key, chain, now=NOW + 59)
    with pytest.raises(CaResponseInvalid, match="expired 1 s before"):
        WorkloadCertificate.from_chain(CART, key, chain, now=NOW + 61)


def test_no_text_of_it_holds_the_key(authority: Authority) -> None:
    own = authority.certificate(CART)
    secret = own.key.pem().decode().splitlines()[1]
    number = own.key.signer.private_numbers().private_value
    for text in (repr(own), str(own), f"{own}", repr(own.leaf)):
        assert secret not in text and str(number) not in text and f"{number:x}" not in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(own)


def test_two_are_never_equal(authority: Authority) -> None:
    one, other = authority.certificate(CART), authority.certificate(CART)
    assert len({one, other, one}) == 2
