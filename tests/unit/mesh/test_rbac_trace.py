"""Why policies match or do not: the same answers as the decision's, with the reason."""

from __future__ import annotations

import ipaddress

import pytest

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
from nodenet.mesh.rbac_match import RbacContext
from nodenet.mesh.rbac_trace import RuleTrace, trace

CART = "spiffe://cluster.local/ns/shop/sa/cart"
DESTINATION = Endpoint(ipaddress.ip_address("fd00::2"), 80)
MTLS = RbacContext(ipaddress.ip_address("10.0.0.1"), CART, DESTINATION)
PLAIN = RbacContext(ipaddress.ip_address("10.0.0.1"), None, DESTINATION)


def exact(*texts: str) -> tuple[StringMatch, ...]:
    return tuple(StringMatch(StringKind.EXACT, text) for text in texts)


PRESENCE = (StringMatch(StringKind.PRESENCE),)
HOLDS = Match(destination_ports=(80,), namespaces=exact("shop"))
FAILS = Match(destination_ports=(81,))


def rule(*matches: Match) -> Rule:
    return Rule((Clause(matches),))


def why(rule: Rule, context: RbacContext = MTLS) -> RuleTrace:
    policy = Policy(name="p", namespace="ns", scope=Scope.GLOBAL, action=Action.DENY, rules=(rule,))
    [found] = trace([policy], context)
    return found.rules[0]


@pytest.mark.parametrize(
    ("context", "match", "field", "reason"),
    [
        (
            MTLS,
            Match(destination_ports=(81, 82)),
            "destinationPorts",
            "port 80 is not in {} 81, 82",
        ),
        (MTLS, Match(not_destination_ports=(80,)), "notDestinationPorts", "port 80 is in {} 80"),
        (
            MTLS,
            Match(principals=exact("a", "b", "c", "d", "e")),
            "principals",
            "cluster.local/ns/shop/sa/cart is not in {} a, b, c and 2 more",
        ),
        (PLAIN, Match(principals=PRESENCE), "principals", "no identity is not in {} *"),
        (MTLS, Match(namespaces=exact("mail")), "namespaces", "shop is not in {} mail"),
        (PLAIN, Match(namespaces=exact("mail")), "namespaces", "no namespace is not in {} mail"),
        (
            MTLS,
            Match(not_service_accounts=(ServiceAccountMatch("shop", "cart"),)),
            "notServiceAccounts",
            "shop/cart is in {} shop/cart",
        ),
        (
            PLAIN,
            Match(service_accounts=(ServiceAccountMatch("a", "b"),)),
            "serviceAccounts",
            "no identity is not in {} a/b",
        ),
        (
            MTLS,
            Match(source_ips=(Cidr.parse("10.1.0.0/16"),)),
            "sourceIps",
            "10.0.0.1 is not in {} 10.1.0.0/16",
        ),
        (
            MTLS,
            Match(not_destination_ips=(Cidr.parse("fd00::/64"),)),
            "notDestinationIps",
            "fd00::2 is in {} fd00::/64",
        ),
    ],
)
def test_reason_of_each_field(context: RbacContext, match: Match, field: str, reason: str) -> None:
    expected = RuleTrace(False, 0, (field,), reason.format(field))
    assert why(rule(match), context) == expected


def test_a_rule_that_holds_names_its_fields() -> None:
    both = Rule((Clause((FAILS, HOLDS)), Clause((Match(principals=PRESENCE),)), Clause()))
    names = ("destinationPorts", "namespaces", "principals")
    assert why(both) == RuleTrace(True, None, names, "destinationPorts, namespaces, principals")


def test_the_clause_that_failed_is_named() -> None:
    both = Rule((Clause((HOLDS,)), Clause((FAILS, Match(namespaces=exact("mail"))))))
    assert why(both) == RuleTrace(
        False,
        1,
        ("destinationPorts", "namespaces"),
        "clause 2: port 80 is not in destinationPorts 81 or shop is not in namespaces mail",
    )


def test_empty_levels() -> None:
    assert why(Rule()) == RuleTrace(True, None, (), "no condition")
    assert why(rule(Match())) == RuleTrace(False, 0, (), "a match without fields never holds")


def test_policies() -> None:
    def policy(name: str, *rules: Rule) -> Policy:
        return Policy(
            name=name,
            namespace="ns",
            scope=Scope.GLOBAL,
            action=Action.ALLOW,
            rules=rules,
            dry_run=name == "many",
        )

    empty, one, many = trace(
        [policy("empty"), policy("one", rule(FAILS), rule(HOLDS)), policy("many", rule(FAILS))],
        MTLS,
    )
    assert (empty.matched, empty.rule, empty.why) == (False, None, "no rules")
    assert (one.policy, one.action, one.matched, one.rule) == ("ns/one", Action.ALLOW, True, 1)
    assert one.why == "rule 2 (destinationPorts, namespaces)"
    assert not one.dry_run and many.dry_run
    assert many.why == "port 80 is not in destinationPorts 81"
    [two] = trace([policy("two", rule(FAILS), rule(Match()))], MTLS)
    assert two.why == (
        "rule 1: port 80 is not in destinationPorts 81; rule 2: a match without fields never holds"
    )
