"""The order of a decision, its texts, and what each empty level means."""

from __future__ import annotations

import ipaddress

import pytest

from nodenet.mesh.model import Endpoint
from nodenet.mesh.policy import Action, Clause, Match, Policy, Rule, Scope, StringKind, StringMatch
from nodenet.mesh.rbac import Note, NoteKind, PolicySet, RbacContext, Verdict, evaluate

CART = "spiffe://cluster.local/ns/shop/sa/cart"
CONTEXT = RbacContext(
    ipaddress.ip_address("10.0.0.1"), CART, Endpoint(ipaddress.ip_address("10.0.0.2"), 80)
)
HOLDS = Rule((Clause((Match(destination_ports=(80,)),)),))
FAILS = Rule((Clause((Match(destination_ports=(81,)),)),))


def policy(name: str, action: Action, *rules: Rule, dry_run: bool = False) -> Policy:
    return Policy(
        name=name,
        namespace="ns",
        scope=Scope.NAMESPACE,
        action=action,
        rules=rules,
        dry_run=dry_run,
    )


def deny(name: str, *rules: Rule, dry_run: bool = False) -> Policy:
    return policy(name, Action.DENY, *rules, dry_run=dry_run)


def allow(name: str, *rules: Rule, dry_run: bool = False) -> Policy:
    return policy(name, Action.ALLOW, *rules, dry_run=dry_run)


REJECTED = "connection closed due to policy rejection: "
NONE_ALLOWED = REJECTED + "allow policies exist, but none allowed"
NO_ALLOW = (NoteKind.DECISION, "no allow policies, allow", None)
NOT_MATCHED = (NoteKind.DECISION, "no allow policies matched", None)


@pytest.mark.parametrize(
    ("policies", "allowed", "text", "decided_by"),
    [
        # row 4: no ALLOW
        ([], True, None, (None, None)),
        ([deny("d", FAILS)], True, None, (None, None)),
        ([deny("d")], True, None, (None, None)),
        # row 2: DENY, the first that matches is named
        ([deny("d", FAILS, HOLDS)], False, REJECTED + "explicitly denied by: ns/d", ("ns/d", 1)),
        (
            [deny("a", FAILS), deny("b", HOLDS), deny("c", HOLDS)],
            False,
            REJECTED + "explicitly denied by: ns/b",
            ("ns/b", 0),
        ),
        (
            [allow("a", HOLDS), deny("d", HOLDS)],
            False,
            REJECTED + "explicitly denied by: ns/d",
            ("ns/d", 0),
        ),
        # row 5: ALLOW
        ([allow("a", HOLDS)], True, None, ("ns/a", 0)),
        ([allow("a", FAILS), allow("b", FAILS, HOLDS)], True, None, ("ns/b", 1)),
        ([deny("d", FAILS), allow("a", HOLDS)], True, None, ("ns/a", 0)),
        # row 6
        ([allow("a", FAILS)], False, NONE_ALLOWED, (None, None)),
        ([allow("a", FAILS), deny("d", FAILS)], False, NONE_ALLOWED, (None, None)),
        # an ALLOW without rules denies all, a rule without clauses and a clause without
        # matches hold, a match without fields does not
        ([allow("a")], False, NONE_ALLOWED, (None, None)),
        ([allow("a", Rule())], True, None, ("ns/a", 0)),
        ([allow("a", Rule((Clause(),)))], True, None, ("ns/a", 0)),
        ([allow("a", Rule((Clause((Match(),)),)))], False, NONE_ALLOWED, (None, None)),
        (
            [deny("d", Rule())],
            False,
            REJECTED + "explicitly denied by: ns/d",
            ("ns/d", 0),
        ),
        # dry runs enforce nothing, neither do they count as an ALLOW that exists
        ([deny("d", HOLDS, dry_run=True)], True, None, (None, None)),
        ([allow("a", FAILS, dry_run=True)], True, None, (None, None)),
        ([allow("a", HOLDS, dry_run=True), allow("b", FAILS)], False, NONE_ALLOWED, (None, None)),
    ],
)
def test_order(
    policies: list[Policy],
    allowed: bool,
    text: str | None,
    decided_by: tuple[str | None, int | None],
) -> None:
    verdict = evaluate(policies, CONTEXT)
    assert (verdict.allowed, verdict.text) == (allowed, text)
    assert (verdict.policy, verdict.rule) == decided_by


@pytest.mark.parametrize(
    ("policies", "notes"),
    [
        ([], [NO_ALLOW]),
        # row 1: every dry-run DENY that matches
        (
            [
                deny("a", HOLDS, dry_run=True),
                deny("b", FAILS, dry_run=True),
                deny("c", FAILS, HOLDS, HOLDS, dry_run=True),
            ],
            [
                (NoteKind.DRY_RUN, "dry-run: deny policy match", "ns/a"),
                (NoteKind.DRY_RUN, "dry-run: deny policy match", "ns/c"),
                NO_ALLOW,
            ],
        ),
        (
            [deny("a", HOLDS, dry_run=True), deny("b", HOLDS)],
            [
                (NoteKind.DRY_RUN, "dry-run: deny policy match", "ns/a"),
                (NoteKind.DECISION, "deny policy match", "ns/b"),
            ],
        ),
        # row 3: an enforced DENY ends it before
        (
            [allow("a", HOLDS, dry_run=True), deny("b", HOLDS)],
            [(NoteKind.DECISION, "deny policy match", "ns/b")],
        ),
        (
            [allow("a", HOLDS, dry_run=True)],
            [(NoteKind.DRY_RUN, "dry-run: allow policy match", "ns/a"), NO_ALLOW],
        ),
        (
            [allow("a", FAILS, dry_run=True)],
            [(NoteKind.DRY_RUN, "dry-run: no allow policies match", None), NO_ALLOW],
        ),
        (
            [allow("a", FAILS, dry_run=True), allow("b", HOLDS)],
            [(NoteKind.DECISION, "allow policy match", "ns/b")],
        ),
        (
            [allow("a", HOLDS, dry_run=True), allow("b", FAILS)],
            [(NoteKind.DRY_RUN, "dry-run: allow policy match", "ns/a"), NOT_MATCHED],
        ),
        ([allow("a", FAILS)], [NOT_MATCHED]),
    ],
)
def test_notes(policies: list[Policy], notes: list[Note]) -> None:
    assert list(evaluate(policies, CONTEXT).notes) == notes


def test_unknown_policies_are_skipped_with_a_warning() -> None:
    verdict = evaluate([allow("a", HOLDS)], CONTEXT, unknown=["ns/gone"])
    assert verdict.allowed
    assert verdict.notes[0] == (NoteKind.UNKNOWN_POLICY, "skipping unknown policy", "ns/gone")


def test_a_policy_that_comes_twice_counts_once() -> None:
    twice = deny("a", HOLDS, dry_run=True)
    notes = evaluate([twice, deny("b", HOLDS, dry_run=True), twice], CONTEXT).notes
    assert [note.policy for note in notes] == ["ns/a", "ns/b", None]


def test_a_set_answers_every_time_anew() -> None:
    policies = PolicySet([allow("a", HOLDS)], unknown=["ns/gone"])
    other = CONTEXT._replace(destination=Endpoint(CONTEXT.destination.ip, 81))
    first: Verdict = policies.evaluate(CONTEXT)
    assert [policies.evaluate(c).allowed for c in (other, CONTEXT, other)] == [False, True, False]
    assert policies.evaluate(CONTEXT) == first


# what the control plane makes of PeerAuthentication

STRICT = deny(
    "istio_converted_static_strict",
    Rule((Clause((Match(not_principals=(StringMatch(StringKind.PRESENCE),)),)),)),
)
EXCEPT_9000 = deny(
    "converted_peer_authentication_x",
    Rule(
        (
            Clause((Match(not_principals=(StringMatch(StringKind.PRESENCE),)),)),
            Clause((Match(not_destination_ports=(9000,)),)),
        )
    ),
)


@pytest.mark.parametrize(
    ("converted", "identity", "port", "allowed"),
    [
        (STRICT, CART, 80, True),
        (STRICT, None, 80, False),
        (EXCEPT_9000, CART, 80, True),
        (EXCEPT_9000, None, 80, False),
        (EXCEPT_9000, None, 9000, True),
    ],
)
def test_peer_authentication(
    converted: Policy, identity: str | None, port: int, allowed: bool
) -> None:
    context = RbacContext(CONTEXT.source, identity, Endpoint(CONTEXT.destination.ip, port))
    assert evaluate([converted], context).allowed is allowed
