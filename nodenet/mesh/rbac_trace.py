"""Why each policy matched a connection or did not, in words. Asks the tests that decide."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from nodenet.mesh.policy import Action, Clause, Match, Policy, Rule
from nodenet.mesh.rbac_match import Facts, RbacContext, facts_of, tests_of

#: Values of a field that are written out; a policy may list thousands.
_SHOWN_MAX: Final = 3


class RuleTrace(NamedTuple):
    """One rule of a policy: whether it holds and, if not, the index of the clause that failed.

    ``fields`` are the JSON names of what was compared: with a rule that holds those of the match
    that did, else those that failed, one for each match of the clause.
    """

    holds: bool
    clause: int | None
    fields: tuple[str, ...]
    why: str


class PolicyTrace(NamedTuple):
    """One policy: whether it matches, and by which rule (an index)."""

    policy: str
    action: Action
    dry_run: bool
    matched: bool
    rule: int | None
    why: str
    rules: tuple[RuleTrace, ...]


def trace(policies: Iterable[Policy], context: RbacContext) -> tuple[PolicyTrace, ...]:
    """Every policy in its order, whether or not an earlier one decided."""
    facts = facts_of(context)
    return tuple(_policy(policy, facts) for policy in policies)


def _policy(policy: Policy, facts: Facts) -> PolicyTrace:
    rules = tuple(_rule(rule, facts) for rule in policy.rules)
    first = next((index for index, rule in enumerate(rules) if rule.holds), None)
    if first is not None:
        why = f"rule {first + 1} ({rules[first].why})"
    elif len(rules) == 1:
        why = rules[0].why
    else:
        why = "; ".join(f"rule {n}: {rule.why}" for n, rule in enumerate(rules, 1)) or "no rules"
    return PolicyTrace(
        policy.key, policy.action, policy.dry_run, first is not None, first, why, rules
    )


def _rule(rule: Rule, facts: Facts) -> RuleTrace:
    held: list[str] = []
    for index, clause in enumerate(rule.clauses):
        holds, fields, why = _clause(clause, facts)
        if not holds:
            place = f"clause {index + 1}: " if len(rule.clauses) > 1 else ""
            return RuleTrace(False, index, fields, place + why)
        held += [field for field in fields if field not in held]
    return RuleTrace(True, None, tuple(held), ", ".join(held) or "no condition")


def _clause(clause: Clause, facts: Facts) -> tuple[bool, tuple[str, ...], str]:
    if not clause.matches:
        return True, (), ""
    failed: list[str] = []
    reasons: list[str] = []
    for match in clause.matches:
        tests = tests_of(match)
        wrong = next((name for name, test in tests if not test(facts)), None)
        if tests and wrong is None:
            return True, tuple(_json_name(name) for name, _ in tests), ""
        if wrong is None:
            reasons.append("a match without fields never holds")
        else:
            failed.append(_json_name(wrong))
            reasons.append(_reason(match, wrong, facts))
    return False, tuple(failed), " or ".join(dict.fromkeys(reasons))


def _reason(match: Match, field: str, facts: Facts) -> str:
    found = _FOUND[field.removeprefix("not_")](facts)
    listed = _listed(getattr(match, field))
    relation = "is in" if field.startswith("not_") else "is not in"
    return f"{found} {relation} {_json_name(field)} {listed}"


def _listed(values: Sequence[object]) -> str:
    shown = ", ".join(map(str, values[:_SHOWN_MAX]))
    more = len(values) - _SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def _json_name(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _principal(facts: Facts) -> str:
    return "no identity" if facts.principal is None else facts.principal


def _namespace(facts: Facts) -> str:
    return facts.namespace or "no namespace"


def _account(facts: Facts) -> str:
    return "no identity" if facts.account is None else "/".join(facts.account)


def _source(facts: Facts) -> str:
    return _address(facts.source_version, facts.source)


def _destination(facts: Facts) -> str:
    return _address(facts.destination_version, facts.destination)


def _port(facts: Facts) -> str:
    return f"port {facts.port}"


_FOUND: Final = {
    "principals": _principal,
    "namespaces": _namespace,
    "service_accounts": _account,
    "source_ips": _source,
    "destination_ips": _destination,
    "destination_ports": _port,
}


def _address(version: int, number: int) -> str:
    return str(ipaddress.IPv4Address(number) if version == 4 else ipaddress.IPv6Address(number))
