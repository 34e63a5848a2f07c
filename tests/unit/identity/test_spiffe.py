"""SPIFFE ids: what is one, what is not, and that one stays the same on its way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.identity.errors import InvalidIdentity
from nodenet.identity.spiffe import Identity

SEGMENT = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True).filter(
    lambda text: text not in (".", "..")
)


def test_an_id_is_read_and_written() -> None:
    identity = Identity.parse("spiffe://cluster.local/ns/shop/sa/cart")
    assert identity == Identity("cluster.local", "shop", "cart")
    assert (identity.trust_domain, identity.namespace) == ("cluster.local", "shop")
    assert identity.service_account == "cart"
    assert str(identity) == "spiffe://cluster.local/ns/shop/sa/cart"
    assert repr(identity) == "Identity('spiffe://cluster.local/ns/shop/sa/cart')"


@given(SEGMENT, SEGMENT, SEGMENT)
def test_every_identity_comes_back(trust_domain: str, namespace: str, account: str) -> None:
    identity = Identity(trust_domain, namespace, account)
    again = Identity.parse(str(identity))
    assert again == identity and hash(again) == hash(identity)


@given(st.text(max_size=80))
def test_any_text_is_an_identity_or_a_typed_error(text: str) -> None:
    for candidate in (text, f"spiffe://{text}", f"spiffe://td/ns/{text}/sa/a"):
        try:
            assert str(Identity.parse(candidate)) == candidate
        except InvalidIdentity as error:
            assert error.text == candidate
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "spiffe://",
        "cluster.local/ns/a/sa/b",
        "SPIFFE://td/ns/a/sa/b",
        "https://td/ns/a/sa/b",
        "spiffe://td/ns/a/sa",
        "spiffe://td/ns/a/sa/b/c",
        "spiffe://td/ns/a/sa/b/",
        "spiffe:///ns/a/sa/b",
        "spiffe://td/ns//sa/b",
        "spiffe://td/ns/a/sa/",
        "spiffe://td/sa/a/ns/b",
        "spiffe://td/ns/a/xx/b",
        "spiffe://td/ns/../sa/b",
        "spiffe://td/ns/./sa/b",
        "spiffe://td/ns/a b/sa/c",
        "spiffe://td/ns/a/sa/b\n",
        "spiffe://td/ns/a/sa/b?x",
        "spiffe://td/ns/a/sa/b#x",
        "spiffe://td:80/ns/a/sa/b",
        "spiffe://u@td/ns/a/sa/b",
        "spiffe://td/ns/a/sa/%62",
        "spiffe://tä/ns/a/sa/b",
        f"spiffe://td/ns/a/sa/{'b' * 2048}",
    ],
)
def test_what_is_no_workloads_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidIdentity) as caught:
        Identity.parse(text)
    assert caught.value.text == text
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("part", ["", "a/b", "a/sa/b", "..", "a\n"])
def test_a_part_cannot_be_more_than_a_segment(part: str) -> None:
    for parts in ((part, "ns", "sa"), ("td", part, "sa"), ("td", "ns", part)):
        with pytest.raises(InvalidIdentity):
            Identity(*parts)


def test_different_identities_differ() -> None:
    ids = {Identity("td", "a", "b"), Identity("td", "b", "a"), Identity("td", "a", "b")}
    assert len(ids) == 2
