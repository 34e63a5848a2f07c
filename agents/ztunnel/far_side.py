"""What the proxy of the destination would do with a tunnel, as far as this state tells.

The far proxy has its own state, which may be seconds older or newer; nobody asks it. The same
functions decide here that decide about tunnels that arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nodenet.agents.ztunnel.explanation import AppSees, Layer, Result, Security, Step
from nodenet.endpoint import IPAddress
from nodenet.mesh import inbound
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.policies import Policies
from nodenet.mesh.policy import Action
from nodenet.mesh.rbac import PolicySet, RbacContext, Verdict
from nodenet.mesh.rbac_trace import PolicyTrace, trace
from nodenet.mesh.route import Protocol, Route
from nodenet.mesh.state import MeshState

LAYER: Final[Layer] = "far-side"
#: Rows after which the destination is not the end.
_TO_WAYPOINTS: Final = frozenset({"Z4b", "Z8"})
#: Policies without a match that are listed one by one; more are counted.
_LISTED_MAX: Final = 16


class FarSide(NamedTuple):
    """The end of the walk."""

    result: Result
    rule: str
    steps: tuple[Step, ...]
    app_sees: AppSees = "proxied"
    security: Security | None = "mtls"
    """None: not even the tunnel comes about."""
    policy: str | None = None
    error: str | None = None
    hint: str | None = None


def far_side(
    state: MeshState, policies: Policies, source: Workload, client: IPAddress, route: Route
) -> FarSide:
    """What happens to a connection of ``source`` at the end of the route.

    ``policies`` may be others than the state's.
    """
    if route.protocol is Protocol.TCP:
        return _plain(policies, client, route)
    if route.protocol is Protocol.DOUBLE_HBONE:
        return _beyond_gateway(route)
    workload, next_hop = route.workload, route.next_hop
    if workload is None or next_hop is None:
        return _not_asked(
            route.row, "the address of its hostname is not known before it is resolved"
        )
    if workload.trust_domain != source.trust_domain:
        return _foreign(source, workload)
    if workload.native_tunnel:
        return _not_asked(
            route.row,
            f"{workload.uid} ends the tunnel itself; what it makes of it is not known here",
        )
    try:
        accepted = inbound.decide(
            state,
            workload,
            next_hop.ip,
            inbound.read_request("CONNECT", route.authority),
            network=workload.network,
        )
    except inbound.InboundRefused as refused:
        return _no_tunnel(refused)
    to = str(accepted.dial)
    if accepted.proxy_target is not None:
        to += f", with a PROXY header for {accepted.proxy_target}"
    connect = _step("CONNECT", "tunnel accepted", "yes", f"leads to {to}")
    context = RbacContext(client, source.identity, accepted.destination)
    judged = judge(policies, workload, context)
    hint = judged.hint
    if hint is None and route.row in _TO_WAYPOINTS:
        hint = "the waypoint decides about the rest of the way"
    return judged._replace(steps=(connect, *judged.steps), hint=hint)


def judge(policies: Policies, workload: Workload, context: RbacContext) -> FarSide:
    """What the policies of a workload say about a connection over mTLS."""
    unknown = [key for key in workload.authorization_policies if policies.get(key) is None]
    found = PolicySet(policies.applying_to(workload, warn=False), unknown)
    verdict = found.evaluate(context)
    steps = (*_unknown(unknown), *_policy_steps(trace(found.policies, context), verdict))
    if verdict.allowed:
        return FarSide("mtls", "RBAC", steps, policy=verdict.policy)
    see = f"{verdict.policy} -p" if verdict.policy else f"-n {workload.namespace}"
    return FarSide(
        "denied",
        "RBAC",
        steps,
        app_sees="connect-ok-then-reset",
        policy=verdict.policy,
        error=verdict.text,
        hint=f"nodenet ztunnel policies {see}",
    )


def _policy_steps(traces: Sequence[PolicyTrace], verdict: Verdict) -> Iterator[Step]:
    """In the order of the decision, up to the policy that decided."""
    quiet = 0
    for each in sorted(traces, key=_turn):
        decided = each.policy == verdict.policy
        if not each.matched:
            quiet += 1
            if quiet > _LISTED_MAX:
                continue
        kind = f"{'dry-run ' if each.dry_run else ''}{each.action.value.lower()}"
        question = f"{kind} {each.policy}"
        if decided:
            means = "allowed" if verdict.allowed else "explicitly denied"
            answer = "allow" if verdict.allowed else "deny"
            yield _step("RBAC", question, answer, f"{each.policy}: {means}, {each.why}", fired=True)
            return
        yield _step("RBAC", question, "match" if each.matched else "no match", each.why)
    if quiet > _LISTED_MAX:
        yield _step(
            "RBAC", "other policies", "no match", f"{quiet - _LISTED_MAX} more do not match"
        )
    if verdict.allowed:
        yield _step("RBAC", "no allow policies", "allow", "nothing denies it", fired=True)
    else:
        yield _step(
            "RBAC", "allow policies", "deny", "allow policies exist, but none allowed", fired=True
        )


def _turn(each: PolicyTrace) -> tuple[bool, bool]:
    """DENY before ALLOW, and of each the dry runs first."""
    return each.action is Action.ALLOW, not each.dry_run


def _unknown(keys: Sequence[str]) -> Iterator[Step]:
    for key in keys:
        yield _step("RBAC", f"policy {key}", "skipped", "the workload names it, nobody knows it")


def _plain(policies: Policies, client: IPAddress, route: Route) -> FarSide:
    workload, next_hop = route.workload, route.next_hop
    if workload is None or next_hop is None:
        return _passed(route.row, "not a workload of the mesh")
    context = RbacContext(client, None, Endpoint(next_hop.ip, next_hop.port))
    applying = policies.applying_to(workload, warn=False)
    if not applying:
        return _passed(route.row, f"{workload.uid} takes plain TCP and has no policies")
    verdict = PolicySet(applying).evaluate(context)
    outcome = "allow" if verdict.allowed else "deny"
    because = f" ({verdict.policy})" if verdict.policy else ""
    return _passed(
        route.row,
        f"{workload.uid} is not said to have a proxy; if it has one, its policies would "
        f"{outcome} this{because}",
    )


def _passed(row: str, why: str) -> FarSide:
    return FarSide("plain", row, (_step("RBAC", "policies", "not asked", why),), security="plain")


def _not_asked(row: str, why: str) -> FarSide:
    return FarSide("mtls", row, (_step("RBAC", "policies", "not asked", why),))


def _beyond_gateway(route: Route) -> FarSide:
    inner = route.inner
    if inner is not None and not inner.identities:
        why = "the service has no subject alternative names, so nobody may end the inner tunnel"
        return FarSide(
            "refused",
            "TLS",
            (_step("TLS", "inner tunnel", "refused", why, fired=True),),
            app_sees="connect-ok-then-reset",
            security=None,
            error="tls error: no identity is acceptable at the end of the inner tunnel",
            hint="the control plane of the other network has to send the service's names",
        )
    return _not_asked(route.row, "what lies beyond the gateway is the other network's to decide")


def _foreign(source: Workload, workload: Workload) -> FarSide:
    why = (
        f"trust domain {source.trust_domain} of the client is not its own, {workload.trust_domain}"
    )
    return FarSide(
        "refused",
        "TLS",
        (_step("TLS", "trust domain", "refused", why, fired=True),),
        app_sees="connect-ok-then-reset",
        security=None,
        error=f"tls error: {why}",
        hint="both ends need certificates of one trust domain",
    )


def _no_tunnel(refused: inbound.InboundRefused) -> FarSide:
    why = f"status {refused.status}: {refused}"
    return FarSide(
        "refused",
        "CONNECT",
        (_step("CONNECT", "tunnel accepted", "refused", why, fired=True),),
        app_sees="connect-ok-then-reset",
        error=str(refused),
        hint=refused.hint,
    )


def _step(rule: str, question: str, answer: str, why: str, *, fired: bool = False) -> Step:
    return Step(layer=LAYER, rule=rule, question=question, fired=fired, answer=answer, why=why)
