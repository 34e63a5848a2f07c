"""Each field of a match, positive and negated, with and without an identity."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.model import Endpoint
from nodenet.mesh.policy import (
    Cidr,
    Clause,
    Match,
    Rule,
    ServiceAccountMatch,
    StringKind,
    StringMatch,
)
from nodenet.mesh.rbac_match import (
    RbacContext,
    compile_match,
    compile_rule,
    facts_of,
    holds,
    principal_of,
)

CART = "spiffe://cluster.local/ns/shop/sa/cart"


def context(
    identity: str | None = CART,
    *,
    source: str = "10.0.0.1",
    destination: str = "10.0.0.2",
    port: int = 80,
) -> RbacContext:
    address = ipaddress.ip_address
    return RbacContext(address(source), identity, Endpoint(address(destination), port))


def matches(match: Match, to: RbacContext) -> bool:
    return holds(compile_rule(Rule((Clause((match,)),))), facts_of(to))


def exact(text: str) -> tuple[StringMatch, ...]:
    return (StringMatch(StringKind.EXACT, text),)


def prefix(text: str) -> tuple[StringMatch, ...]:
    return (StringMatch(StringKind.PREFIX, text),)


def suffix(text: str) -> tuple[StringMatch, ...]:
    return (StringMatch(StringKind.SUFFIX, text),)


PRESENCE = (StringMatch(StringKind.PRESENCE),)
ACCOUNT = (ServiceAccountMatch("shop", "cart"),)
PLAIN = context(None)
OTHER_DOMAIN = context("spiffe://other/ns/shop/sa/cart")
STRANGE = context("spiffe://cluster.local/workload/7")


@pytest.mark.parametrize(
    ("match", "to", "expected"),
    [
        # principals: the id without its scheme; no identity equals nothing
        (Match(principals=exact("cluster.local/ns/shop/sa/cart")), context(), True),
        (Match(principals=exact("cluster.local/ns/shop/sa/db")), context(), False),
        (Match(principals=exact(CART)), context(), False),
        (Match(principals=prefix("cluster.local/ns/shop/")), context(), True),
        (Match(principals=suffix("/sa/cart")), context(), True),
        (Match(principals=suffix("/sa/CART")), context(), False),
        (Match(principals=PRESENCE), context(), True),
        (Match(principals=exact("a") + suffix("/cart")), context(), True),
        (Match(principals=PRESENCE), PLAIN, False),
        (Match(principals=exact("")), PLAIN, False),
        (Match(principals=prefix("")), PLAIN, False),
        (Match(not_principals=exact("cluster.local/ns/shop/sa/cart")), context(), False),
        (Match(not_principals=exact("cluster.local/ns/shop/sa/db")), context(), True),
        (Match(not_principals=PRESENCE), context(), False),
        (Match(not_principals=PRESENCE), PLAIN, True),
        (Match(not_principals=prefix("") + exact("")), PLAIN, True),
        (Match(principals=exact("cluster.local/workload/7")), STRANGE, True),
        # namespaces: the identity's, empty without one
        (Match(namespaces=exact("shop")), context(), True),
        (Match(namespaces=exact("mail")), context(), False),
        (Match(namespaces=prefix("sh")), context(), True),
        (Match(namespaces=suffix("op")), context(), True),
        (Match(namespaces=exact("shop")), PLAIN, False),
        (Match(namespaces=exact("")), PLAIN, True),
        (Match(namespaces=PRESENCE), PLAIN, False),
        (Match(namespaces=PRESENCE), STRANGE, False),
        (Match(not_namespaces=exact("shop")), context(), False),
        (Match(not_namespaces=exact("mail")), context(), True),
        (Match(not_namespaces=exact("shop")), PLAIN, True),
        (Match(not_namespaces=PRESENCE), PLAIN, True),
        # service accounts: whatever the trust domain
        (Match(service_accounts=ACCOUNT), context(), True),
        (Match(service_accounts=ACCOUNT), OTHER_DOMAIN, True),
        (Match(service_accounts=(ServiceAccountMatch("mail", "cart"),)), context(), False),
        (Match(service_accounts=(ServiceAccountMatch("shop", "db"),)), context(), False),
        (Match(service_accounts=ACCOUNT), PLAIN, False),
        (Match(service_accounts=(ServiceAccountMatch("", ""),)), PLAIN, False),
        (Match(not_service_accounts=ACCOUNT), context(), False),
        (Match(not_service_accounts=(ServiceAccountMatch("shop", "db"),)), context(), True),
        (Match(not_service_accounts=ACCOUNT), PLAIN, True),
        # addresses
        (Match(source_ips=(Cidr.parse("10.0.0.0/24"),)), context(), True),
        (Match(source_ips=(Cidr.parse("10.0.0.2"),)), context(), False),
        (Match(source_ips=(Cidr.parse("::/0"),)), context(), False),
        (Match(source_ips=(Cidr.parse("fd00::/8"),)), context(source="fd00::1"), True),
        (Match(source_ips=(Cidr.parse("0.0.0.0/0"),)), context(source="fd00::1"), False),
        (Match(source_ips=(Cidr.parse("10.0.0.1"),)), context(source="::ffff:10.0.0.1"), True),
        (Match(not_source_ips=(Cidr.parse("10.0.0.0/24"),)), context(), False),
        (Match(not_source_ips=(Cidr.parse("10.0.0.2"),)), context(), True),
        (Match(source_ips=(Cidr.parse("10.0.0.1"),)), PLAIN, True),
        (Match(destination_ips=(Cidr.parse("10.0.0.2"),)), context(), True),
        (Match(destination_ips=(Cidr.parse("10.0.0.1"),)), context(), False),
        (Match(not_destination_ips=(Cidr.parse("10.0.0.2"),)), context(), False),
        (Match(not_destination_ips=(Cidr.parse("10.0.0.1"),)), context(), True),
        # ports
        (Match(destination_ports=(80,)), context(), True),
        (Match(destination_ports=(443, 80)), context(), True),
        (Match(destination_ports=(81,)), context(), False),
        (Match(not_destination_ports=(80,)), context(), False),
        (Match(not_destination_ports=(81,)), context(), True),
        # fields are ANDed, also a positive with its own negation
        (Match(destination_ports=(80,), namespaces=exact("shop")), context(), True),
        (Match(destination_ports=(81,), namespaces=exact("shop")), context(), False),
        (Match(destination_ports=(80,), namespaces=exact("mail")), context(), False),
        (Match(namespaces=PRESENCE, not_namespaces=exact("shop")), context(), False),
        (Match(namespaces=PRESENCE, not_namespaces=exact("mail")), context(), True),
        # a match without fields
        (Match(), context(), False),
        (Match(), PLAIN, False),
    ],
)
def test_fields(match: Match, to: RbacContext, expected: bool) -> None:
    assert matches(match, to) is expected


HOLDS = Match(destination_ports=(80,))
FAILS = Match(destination_ports=(81,))
EMPTY = Match()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(), True),
        (Rule((Clause(),)), True),
        (Rule((Clause((HOLDS,)),)), True),
        (Rule((Clause((FAILS,)),)), False),
        (Rule((Clause((FAILS, HOLDS)),)), True),
        (Rule((Clause((HOLDS,)), Clause((FAILS,)))), False),
        (Rule((Clause((HOLDS,)), Clause((FAILS, HOLDS)))), True),
        (Rule((Clause(), Clause((FAILS,)))), False),
        (Rule((Clause(), Clause((HOLDS,)))), True),
        (Rule((Clause((EMPTY,)),)), False),
        (Rule((Clause((EMPTY, HOLDS)),)), True),
        (Rule((Clause((EMPTY,)), Clause((HOLDS,)))), False),
    ],
)
def test_rules(rule: Rule, expected: bool) -> None:
    assert holds(compile_rule(rule), facts_of(context())) is expected


@pytest.mark.parametrize(
    ("identity", "namespace", "account"),
    [
        (CART, "shop", ("shop", "cart")),
        ("cluster.local/ns/shop/sa/cart", "shop", ("shop", "cart")),
        ("spiffe://td/ns/shop/sa/cart/more", "", None),
        ("spiffe://td/ns/shop", "", None),
        ("spiffe://td/sa/cart/ns/shop", "", None),
        ("spiffe://", "", None),
    ],
)
def test_principal_parts(identity: str, namespace: str, account: tuple[str, str] | None) -> None:
    found = principal_of(identity)
    assert (found.namespace, found.account) == (namespace, account)
    assert found.text == identity.removeprefix("spiffe://")


@given(
    st.lists(
        st.builds(StringMatch, st.sampled_from(StringKind), st.text("ab", max_size=3)),
        min_size=1,
        max_size=3,
    ),
    st.text("ab", max_size=4),
)
def test_lists_of_texts_are_ors(tests: list[StringMatch], text: str) -> None:
    """The merged test of a list says what its members say one by one."""
    identity = f"spiffe://td/ns/{text}/sa/x"
    expected = any(test.matches(text) for test in tests)
    assert matches(Match(namespaces=tuple(tests)), context(identity)) is expected
    assert matches(Match(not_namespaces=tuple(tests)), context(identity)) is not expected


_V4 = st.ip_addresses(v=4)
_ADDRESSES = _V4 | st.ip_addresses(v=6)


@given(st.data(), _ADDRESSES)
def test_ranges_agree_with_ipaddress(
    data: st.DataObject, base: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    length = data.draw(st.integers(0, base.max_prefixlen))
    cidr = Cidr.of(base.packed, length)
    near = int(base) ^ data.draw(st.integers(0, 2 ** (base.max_prefixlen - length) * 2 - 1))
    other = type(base)(near % 2**base.max_prefixlen)
    to = context(source=str(other))
    # a v4-mapped address is an IPv4 one to every policy
    mapped = isinstance(other, ipaddress.IPv6Address) and other.ipv4_mapped is not None
    if not mapped:
        assert matches(Match(source_ips=(cidr,)), to) is cidr.contains(other)


def test_compiling_leaves_out_empty_lists() -> None:
    assert compile_match(Match()) == ()
    assert len(compile_match(Match(destination_ports=(1,), not_namespaces=PRESENCE))) == 2
