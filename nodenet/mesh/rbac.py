"""Whether a connection may reach a workload: the decision over its authorization policies.

The order (ztunnel: `src/state.rs:DemandProxyState::assert_rbac`):

1. a dry-run DENY that matches is noted;
2. an enforced DENY that matches refuses;
3. a dry-run ALLOW that matches is noted; that none matches, when no ALLOW is enforced either;
4. without an enforced ALLOW the connection is allowed;
5. an enforced ALLOW that matches allows;
6. everything else is refused.

A policy is an OR of rules: without rules it never matches, so an ALLOW without rules refuses
everybody. A rule is an AND of clauses and a clause an OR of matches: empty, they hold. A match is
an AND of its fields: empty, it does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from nodenet.mesh.policy import Action, Policy
from nodenet.mesh.rbac_index import Hit, RuleIndex
from nodenet.mesh.rbac_match import RbacContext, facts_of

__all__ = ["Note", "NoteKind", "PolicySet", "RbacContext", "Verdict", "evaluate"]

#: ``error=`` of the access log (ztunnel: src/proxy.rs:Error, src/rbac.rs:RbacError).
EXPLICITLY_DENIED: Final = "connection closed due to policy rejection: explicitly denied by: %s"
NOT_ALLOWED: Final = (
    "connection closed due to policy rejection: allow policies exist, but none allowed"
)
#: ``error=`` when a connection is cut because policies changed under it.
POLICY_CHANGED: Final = "connection closed due to policy change"


class NoteKind(Enum):
    """What a note is about, and so how loud its log line is."""

    UNKNOWN_POLICY = "unknown-policy"
    """WARN: the workload names a policy that is not there."""
    DRY_RUN = "dry-run"
    """As loud as decisions are."""
    DECISION = "decision"
    """DEBUG, or INFO with AUTHZ_POLICY_INFO_LOGGING."""


class Note(NamedTuple):
    """A line for the log: its message, the ``policy`` field or None."""

    kind: NoteKind
    text: str
    policy: str | None = None


class Verdict(NamedTuple):
    """The answer. ``text`` is the exact error of a refusal, None when the connection is allowed.

    ``policy`` and ``rule`` (an index) name what decided, None when the absence of something did.
    ``notes`` are the log lines, in their order.
    """

    allowed: bool
    text: str | None
    policy: str | None
    rule: int | None
    notes: tuple[Note, ...]


class PolicySet:
    """The policies of one workload, compiled. Immutable: made again when policies change."""

    __slots__ = ("_allow", "_allows", "_deny", "_dry_allow", "_dry_deny", "_warnings", "policies")

    def __init__(self, policies: Iterable[Policy], unknown: Iterable[str] = ()) -> None:
        """``unknown``: keys that the workload names but nobody knows. They are skipped.

        A policy that comes twice, by its scope and by name, counts once.
        """
        self.policies: Final = tuple({policy.key: policy for policy in policies}.values())
        enforced_allow = self._of(Action.ALLOW, dry_run=False)
        dry_allow = self._of(Action.ALLOW, dry_run=True)
        self._deny = RuleIndex(self._of(Action.DENY, dry_run=False))
        self._dry_deny = _index(self._of(Action.DENY, dry_run=True))
        self._allow = RuleIndex(enforced_allow)
        self._allows = bool(enforced_allow)
        self._dry_allow = _index(dry_allow)
        self._warnings = [
            Note(NoteKind.UNKNOWN_POLICY, "skipping unknown policy", key) for key in unknown
        ]

    def evaluate(self, context: RbacContext) -> Verdict:
        """Decides about one connection."""
        facts = facts_of(context)
        notes = self._warnings.copy()
        if self._dry_deny is not None:
            for hit in self._dry_deny.each_policy(facts):
                notes.append(Note(NoteKind.DRY_RUN, "dry-run: deny policy match", hit.policy))
        if (denied := self._deny.first(facts)) is not None:
            notes.append(Note(NoteKind.DECISION, "deny policy match", denied.policy))
            return _refused(EXPLICITLY_DENIED % denied.policy, denied, notes)
        if self._dry_allow is not None:
            hits = [
                Note(NoteKind.DRY_RUN, "dry-run: allow policy match", hit.policy)
                for hit in self._dry_allow.each_policy(facts)
            ]
            if not hits and not self._allows:
                hits = [Note(NoteKind.DRY_RUN, "dry-run: no allow policies match")]
            notes += hits
        if not self._allows:
            notes.append(_NO_ALLOW_POLICIES)
            return Verdict(True, None, None, None, tuple(notes))
        if (allowed := self._allow.first(facts)) is not None:
            notes.append(Note(NoteKind.DECISION, "allow policy match", allowed.policy))
            return Verdict(True, None, allowed.policy, allowed.rule, tuple(notes))
        notes.append(Note(NoteKind.DECISION, "no allow policies matched"))
        return _refused(NOT_ALLOWED, None, notes)

    def _of(self, action: Action, *, dry_run: bool) -> list[Policy]:
        return [p for p in self.policies if p.action is action and p.dry_run is dry_run]


def evaluate(
    policies: Iterable[Policy], context: RbacContext, unknown: Iterable[str] = ()
) -> Verdict:
    """Decides once, without keeping what was compiled; who asks often keeps a `PolicySet`."""
    return PolicySet(policies, unknown).evaluate(context)


_NO_ALLOW_POLICIES: Final = Note(NoteKind.DECISION, "no allow policies, allow")


def _index(policies: Sequence[Policy]) -> RuleIndex | None:
    return RuleIndex(policies) if policies else None


def _refused(text: str, hit: Hit | None, notes: Sequence[Note]) -> Verdict:
    policy, rule = (None, None) if hit is None else hit
    return Verdict(False, text, policy, rule, tuple(notes))
