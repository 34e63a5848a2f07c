"""What a CA answers on the wire (ztunnel: identity/caclient.rs, its tests)."""

from __future__ import annotations

import pytest

from nodenet.identity.chain import chain_from_response
from nodenet.identity.errors import CaError, CaResponseInvalid, SanMismatch
from nodenet.identity.spiffe import Identity
from tests.unit.identity.authority import Authority

CART = Identity("cluster.local", "shop", "cart")
BANK = Identity("cluster.local", "bank", "vault")


@pytest.fixture(scope="module")
def above() -> Authority:
    return Authority.with_intermediate()


def test_leaf_first_roots_last_the_rest_between(above: Authority) -> None:
    assert above.intermediate is not None
    own, other = above.certificate(CART), Authority().root.certificate
    between, root = above.intermediate.certificate, above.root.certificate
    chain = chain_from_response([own.leaf.pem, between.pem, root.pem + other.pem], CART)
    assert chain.leaf.der == own.leaf.der
    assert [c.der for c in chain.intermediates] == [between.der]
    assert [c.der for c in chain.roots] == [root.der, other.der]


def test_a_leaf_may_bring_its_intermediates_in_one_text(above: Authority) -> None:
    assert above.intermediate is not None
    own = above.certificate(CART)
    texts = [own.chain_pem, above.root.certificate.pem]
    chain = chain_from_response(texts, CART)
    assert [c.der for c in chain.intermediates] == [above.intermediate.certificate.der]


def test_two_elements_are_leaf_and_roots(authority: Authority) -> None:
    own = authority.certificate(CART)
    chain = chain_from_response([own.leaf.pem, own.roots_pem], CART)
    assert chain.intermediates == () and len(chain.roots) == 1


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([], "no certificate"),
        (["LEAF"], "one certificate only"),
        (["", "ROOT"], "no leaf"),
        (["LEAF", ""], "no root"),
        (["LEAF", "not a certificate"], "no root"),
        (["LEAF", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"], "read"),
        (["-----BEGIN CERTIFICATE-----", "ROOT"], "read"),
        (["LEAF", "-----BEGIN CERTIFICATE-----\n\udcff\n", "ROOT"], "read"),
    ],
)
def test_what_is_no_chain_is_refused(authority: Authority, texts: list[str], reason: str) -> None:
    own = authority.certificate(CART)
    real = {"LEAF": own.leaf.pem, "ROOT": own.roots_pem}
    with pytest.raises(CaResponseInvalid, match=reason) as caught:
        chain_from_response([real.get(text, text) for text in texts], CART)
    assert isinstance(caught.value, CaError)


def test_a_leaf_of_somebody_else_is_refused(authority: Authority) -> None:
    own = authority.certificate(BANK)
    texts = [own.leaf.pem, own.roots_pem]
    with pytest.raises(SanMismatch) as caught:
        chain_from_response(texts, CART)
    assert (caught.value.wanted, caught.value.found) == (str(CART), (str(BANK),))
    # a proxy of one workload takes what the CA says
    assert chain_from_response(texts, None).leaf.uris == (str(BANK),)
