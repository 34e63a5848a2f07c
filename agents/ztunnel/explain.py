"""What would happen to a connection of one workload, by the code that decides. Nothing is sent.

`explain` is a pure function of the mesh state, of this moment or of a dump. It walks the rows of
the outbound decision (`nodenet.mesh.explain`), then what the destination's proxy would do
(`nodenet.agents.ztunnel.far_side`). Random choices are made by the generator given; what they
could have been is listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from nodenet.agents.ztunnel.explanation import (
    AppSees,
    End,
    Explanation,
    Layer,
    Outcome,
    Result,
    Security,
    Step,
    WhatIf,
)
from nodenet.agents.ztunnel.far_side import far_side
from nodenet.agents.ztunnel.what_if import LiveInbound, OtherPolicies, unbound, would_be_cut
from nodenet.endpoint import IPAddress
from nodenet.mesh import explain as walk
from nodenet.mesh.load_balancing import Resolution, candidates
from nodenet.mesh.model import Endpoint, Service, Workload
from nodenet.mesh.policies import Policies
from nodenet.mesh.policy import Policy
from nodenet.mesh.route import Protocol, Route
from nodenet.mesh.rows import ROWS
from nodenet.mesh.state import MeshState

_LAYER: Final[Layer] = "proxy"
#: Endpoints of which each is walked to the end; a service may have thousands.
_OUTCOMES_MAX: Final = 32
#: State of a certificate that can be used, in `/v1/certificates`.
_AVAILABLE: Final = "available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A connection that somebody asks about."""

    source: Workload
    client: IPAddress
    """The address it would come from."""
    destination: Endpoint
    """Where the application would connect to, not v4-mapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What the answer is taken from."""

    state: MeshState
    network: str
    """This cluster's (`NETWORK`)."""
    certificates: Mapping[str, str] | None = None
    """State by SPIFFE id, as ``/v1/certificates`` has it; None: not known, so not asked."""
    live: Iterable[LiveInbound] = ()
    served: Collection[str] | None = None
    """Uids of the workloads whose connections come to this proxy; None: not known."""


def explain(
    mesh: Mesh, question: Question, *, rng: Random, policies: Sequence[Policy] = ()
) -> Explanation:
    """The whole answer. ``policies``: as if these were there too, or instead of their namesakes."""
    now = mesh.state.policies
    found = _walk(mesh, question, now, rng)
    if not policies:
        return _explanation(mesh, question, found, _outcomes(mesh, question, now, found), None)
    others = OtherPolicies(mesh.state, policies)
    then = others.policies
    changed = _walk_again(mesh, question, then, found)
    what_if = WhatIf(
        policies=tuple(policy.key for policy in policies),
        unbound=tuple(unbound(mesh.state, policies)),
        result_now=found.result,
        policy_now=found.policy,
        cut=tuple(would_be_cut(mesh.live, others)),
    )
    return _explanation(mesh, question, changed, _outcomes(mesh, question, then, changed), what_if)


class _Walk(NamedTuple):
    result: Result
    rule: str
    steps: tuple[Step, ...]
    security: Security | None
    app_sees: AppSees
    route: Route | None
    policy: str | None = None
    error: str | None = None
    hint: str | None = None


def _walk(mesh: Mesh, question: Question, policies: Policies, rng: Random) -> _Walk:
    near = walk.explain(
        mesh.state,
        question.source,
        question.client,
        question.destination,
        network=mesh.network,
        rng=rng,
    )
    steps = tuple(
        Step(
            layer=_LAYER,
            rule=each.row,
            question=_QUESTIONS[each.row.rstrip("abc")],
            fired=each.fired,
            answer=each.answer,
            why=each.why,
            candidates=each.candidates,
        )
        for each in near.steps
    )
    if near.refused is not None:
        refused = near.refused
        return _closed(refused.row, steps, refused.message, refused.hint)
    route = near.route
    assert route is not None  # what is not refused has a route
    if route.protocol is not Protocol.TCP and (without := _no_certificate(mesh, question)):
        error = f"identity error: {without.why}"
        return _closed("ID", (*steps, without), error, "nodenet ztunnel certificates")
    return _to_the_end(mesh, question, policies, route, steps)


def _walk_again(mesh: Mesh, question: Question, policies: Policies, found: _Walk) -> _Walk:
    """The same way with other policies: they change nothing of it before its far side."""
    if found.route is None:
        return found
    near = tuple(step for step in found.steps if step.layer == _LAYER)
    return _to_the_end(mesh, question, policies, found.route, near)


def _to_the_end(
    mesh: Mesh, question: Question, policies: Policies, route: Route, steps: tuple[Step, ...]
) -> _Walk:
    far = far_side(mesh.state, policies, question.source, question.client, route)
    return _Walk(
        far.result,
        far.rule,
        (*steps, *far.steps),
        far.security,
        far.app_sees,
        route,
        far.policy,
        far.error,
        far.hint,
    )


def _closed(rule: str, steps: tuple[Step, ...], error: str, hint: str | None) -> _Walk:
    return _Walk(
        "refused", rule, steps, None, "connect-ok-then-reset", None, error=error, hint=hint
    )


_QUESTIONS: Final = {row.id: row.question for row in ROWS}


def _is_served(mesh: Mesh, source: Workload) -> bool:
    """Whether its connections come to this proxy, as far as that is known."""
    return mesh.served is None or source.uid in mesh.served


def _no_certificate(mesh: Mesh, question: Question) -> Step | None:
    """Why there is no certificate to connect with; None: there is one, or nobody knows."""
    if mesh.certificates is None or not _is_served(mesh, question.source):
        return None
    identity = question.source.identity
    state = mesh.certificates.get(identity, "unknown")
    if state == _AVAILABLE:
        return None
    return Step(
        layer=_LAYER,
        rule="ID",
        question="certificate",
        fired=True,
        answer="refused",
        why=f"the certificate of {identity} is {state}",
    )


class _Fixed(Random):
    """Always the same choice."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def random(self) -> float:
        return self._value


def _outcomes(
    mesh: Mesh, question: Question, policies: Policies, found: _Walk
) -> tuple[list[Outcome], int]:
    """Each endpoint that may be chosen, walked to the end; and how many were left out.

    Only where the endpoint is the destination itself: there the choice of it is the only one.
    """
    route = found.route
    if route is None or route.row not in ("Z9", "Z10") or route.service is None:
        return [], 0
    among = candidates(
        mesh.state.services,
        route.service,
        question.source,
        question.destination.port,
        Resolution.STANDARD,
    )
    shares = list(among.shares())
    if len(shares) < 2:
        return [], 0
    outcomes: list[Outcome] = []
    before = 0.0
    for endpoint, share in shares[:_OUTCOMES_MAX]:
        walked = _walk(mesh, question, policies, _Fixed(before + share / 2))
        before += share
        outcomes.append(
            Outcome(
                endpoint=endpoint.uid,
                probability=share,
                result=walked.result,
                policy=walked.policy,
                error=walked.error,
            )
        )
    return outcomes, max(0, len(shares) - _OUTCOMES_MAX)


def _explanation(
    mesh: Mesh,
    question: Question,
    found: _Walk,
    outcomes: tuple[list[Outcome], int],
    what_if: WhatIf | None,
) -> Explanation:
    route, source = found.route, question.source
    each, left_out = outcomes
    hint = found.hint
    if not _is_served(mesh, source):
        # the rows are what would be, were it enrolled
        name = f"{source.namespace}/{source.name}"
        hint = (
            f"enroll {name} first: this proxy does not serve it, so none of its connections "
            f"come here; see: nodenet capture explain {name} DST:PORT"
        )
    differing = sum(1 for outcome in each if outcome.result != found.result)
    if differing and hint is None:
        hint = f"{differing} of {len(each)} endpoints would answer otherwise: see outcomes"
    return Explanation(
        result=found.result,
        rule=found.rule,
        security=found.security,
        src=End(
            name=f"{source.namespace}/{source.name}",
            address=str(question.client),
            port=None,
            identity=source.identity,
        ),
        dst=_end(mesh, question),
        steps=found.steps,
        app_sees=found.app_sees,
        next_hop=str(route.next_hop) if route and route.next_hop else None,
        authority=(route.authority or None) if route else None,
        policy=found.policy,
        error=found.error,
        outcomes=tuple(each),
        outcomes_left_out=left_out,
        what_if=what_if,
        hint=hint,
    )


def _end(mesh: Mesh, question: Question) -> End:
    destination = question.destination
    who = mesh.state.address(mesh.network, destination.ip, question.source.namespace)
    name = identity = None
    if isinstance(who, Service):
        name = who.key
    elif who is not None:
        name, identity = f"{who.namespace}/{who.name}", who.identity
    return End(name=name, address=str(destination.ip), port=destination.port, identity=identity)
