"""The index finds what asking every rule in turn finds, in the same order."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.mesh.model import Endpoint
from nodenet.mesh.policy import (
    Action,
    Cidr,
    Clause,
    Match,
    Policy,
    Rule,
    Scope,
    ServiceAccountMatch,
    StringKind,
    StringMatch,
)
from nodenet.mesh.rbac_index import Hit, RuleIndex
from nodenet.mesh.rbac_match import RbacContext, compile_rule, facts_of, holds

_WORDS = st.sampled_from(["", "a", "b", "ab"])
_TEXTS = st.builds(StringMatch, st.sampled_from(StringKind), _WORDS)
_PRINCIPALS = st.builds(
    StringMatch,
    st.sampled_from(StringKind),
    st.sampled_from(["td/ns/a/sa/b", "td/", "/sa/a", "", "td/ns/ab/sa/a", "td/odd"]),
)
_CIDRS = st.sampled_from(["10.0.0.1", "10.0.0.0/31", "0.0.0.0/0", "fd00::/127", "::/0"]).map(
    Cidr.parse
)
_ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "namespaces": _TEXTS,
    "accounts": st.builds(ServiceAccountMatch, _WORDS, _WORDS),
    "principals": _PRINCIPALS,
    "ips": _CIDRS,
    "ports": st.sampled_from([80, 81]),
}


def _few(of: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=most).map(tuple)


@st.composite
def _matches(draw: st.DrawFn) -> Match:
    """Matches with few fields, or nothing would ever hold."""
    names = draw(st.lists(st.sampled_from(Match.__struct_fields__), max_size=2))
    return Match(**{n: draw(_few(_ITEMS[n.rpartition("_")[2]])) for n in names})


_RULES = st.builds(Rule, _few(st.builds(Clause, _few(_matches(), 3))))
_CONTEXTS = st.builds(
    RbacContext,
    st.sampled_from(["10.0.0.0", "10.0.0.1", "fd00::1", "fd00::2"]).map(ipaddress.ip_address),
    st.sampled_from([None, "spiffe://td/ns/a/sa/b", "spiffe://td/ns/ab/sa/a", "spiffe://td/odd"]),
    st.builds(
        Endpoint,
        st.sampled_from(["10.0.0.1", "fd00::1"]).map(ipaddress.ip_address),
        st.sampled_from([80, 81, 82]),
    ),
)


def _policy(number: int, rules: tuple[Rule, ...]) -> Policy:
    return Policy(
        name=f"p{number}",
        namespace="ns",
        scope=Scope.NAMESPACE,
        action=Action.DENY,
        rules=rules,
    )


@settings(max_examples=40)
@given(st.lists(_few(_RULES, 8), min_size=3, max_size=6), st.lists(_CONTEXTS, min_size=4))
def test_same_answer_as_in_turn(rules: list[tuple[Rule, ...]], contexts: list[RbacContext]) -> None:
    # repeated until the index is used; the copies make the order matter
    policies = [_policy(n, each) for n, each in enumerate(rules * 12)]
    index = RuleIndex(policies)
    for context in contexts:
        facts = facts_of(context)
        expected = []
        for policy in policies:
            for number, rule in enumerate(policy.rules):
                if holds(compile_rule(rule), facts):
                    expected.append(Hit(policy.key, number))
                    break
        assert list(index.each_policy(facts)) == expected
        assert index.first(facts) == (expected[0] if expected else None)


CONTEXT = RbacContext(
    ipaddress.ip_address("10.0.0.1"),
    "spiffe://td/ns/shop/sa/cart",
    Endpoint(ipaddress.ip_address("10.0.0.2"), 80),
)
EXACT, PREFIX, SUFFIX = StringKind.EXACT, StringKind.PREFIX, StringKind.SUFFIX


@pytest.mark.parametrize(
    "hit",
    [
        Match(principals=(StringMatch(EXACT, "td/ns/shop/sa/cart"),)),
        Match(principals=(StringMatch(PREFIX, "td/ns/shop/"),)),
        Match(principals=(StringMatch(SUFFIX, "/cart"),)),
        Match(namespaces=(StringMatch(EXACT, "shop"),)),
        Match(service_accounts=(ServiceAccountMatch("shop", "cart"),)),
        Match(source_ips=(Cidr.parse("10.0.0.0/30"),)),
        Match(destination_ips=(Cidr.parse("10.0.0.2"),)),
        Match(destination_ports=(80,)),
        Match(not_principals=(StringMatch(EXACT, "td/ns/shop/sa/db"),)),
        Match(namespaces=(StringMatch(StringKind.PRESENCE),)),
    ],
)
def test_one_rule_among_many(hit: Match) -> None:
    def other(number: int) -> Match:
        return Match(principals=(StringMatch(EXACT, f"td/ns/n{number}/sa/x"),))

    policies = [
        _policy(n, (Rule((Clause((hit if n == 500 else other(n),)),)),)) for n in range(1000)
    ]
    assert RuleIndex(policies).first(facts_of(CONTEXT)) == Hit("ns/p500", 0)


def test_a_rule_is_found_by_one_of_its_clauses() -> None:
    anybody = Clause((Match(not_destination_ports=(81,)),))
    named = Clause((Match(principals=(StringMatch(EXACT, "td/ns/shop/sa/cart"),)),))
    policies = [_policy(n, (Rule((anybody, named)),)) for n in range(50)]
    assert RuleIndex(policies).first(facts_of(CONTEXT)) == Hit("ns/p0", 0)


def test_more_shapes_than_are_looked_for() -> None:
    """Rules that need one too many are asked all the same."""
    rules = [
        Rule((Clause((Match(principals=(StringMatch(PREFIX, "x" * n),)),)),)) for n in range(1, 99)
    ]
    rules.append(Rule((Clause((Match(principals=(StringMatch(PREFIX, "td/n"),)),)),)))
    assert RuleIndex([_policy(0, tuple(rules))]).first(facts_of(CONTEXT)) == Hit("ns/p0", 98)


def test_a_clause_that_names_very_many() -> None:
    many = tuple(StringMatch(EXACT, f"td/ns/n{n}/sa/x") for n in range(300))
    wanted = (*many, StringMatch(EXACT, "td/ns/shop/sa/cart"))
    policies = [_policy(n, (Rule((Clause((Match(principals=wanted),)),)),)) for n in range(30)]
    assert RuleIndex(policies).first(facts_of(CONTEXT)) == Hit("ns/p0", 0)
