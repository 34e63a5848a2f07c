"""Other policies than those in force: what they would change, before anybody applies them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nodenet.agents.ztunnel.explanation import Cut
from nodenet.agents.ztunnel.flow_facts import INBOUND, FlowFacts
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.policies import Policies
from nodenet.mesh.policy import Policy, Scope
from nodenet.mesh.policy_sets import PolicySets
from nodenet.mesh.rbac import POLICY_CHANGED, RbacContext
from nodenet.mesh.state import MeshState


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveInbound:
    """An inbound connection as it was judged when it began."""

    id: str
    pod: str
    peer: str
    """ENDPOINT of the client."""
    workload: Workload
    """The pod's own, as it was then."""
    context: RbacContext


def live_inbound(facts: FlowFacts) -> LiveInbound | None:
    """A live connection as the policies see it; None when they have no say in it."""
    if facts.direction != INBOUND or facts.dst_workload is None or facts.original_dst is None:
        return None
    to = facts.original_dst
    return LiveInbound(
        id=facts.conn_id,
        pod=facts.pod,
        peer=str(facts.src),
        workload=facts.dst_workload,
        context=RbacContext(
            ipaddress.ip_address(facts.src.host),
            facts.src_identity,
            Endpoint(ipaddress.ip_address(to.host), to.port),
        ),
    )


class OtherPolicies:
    """The policies of a state with some added, or in place of those of the same name."""

    def __init__(self, state: MeshState, others: Sequence[Policy]) -> None:
        self.policies = Policies()
        for policy in (*state.policies, *others):
            self.policies.insert(policy)
        self.policy_version = state.policy_version

    def policies_of(self, workload: Workload) -> list[Policy]:
        """As `MeshState.policies_of`."""
        return self.policies.applying_to(workload, warn=False)


def would_be_cut(live: Iterable[LiveInbound], policies: OtherPolicies) -> Iterator[Cut]:
    """Those of the live connections that would be closed if the policies came into force.

    Each is judged by the workload it had when it began, as the proxy does.
    """
    sets = PolicySets(policies)
    for each in live:
        verdict = sets.of(each.workload).evaluate(each.context)
        if not verdict.allowed:
            yield Cut(
                id=each.id,
                pod=each.pod,
                peer=each.peer,
                identity=each.context.identity,
                policy=verdict.policy,
                error=POLICY_CHANGED,
            )


def unbound(state: MeshState, policies: Sequence[Policy]) -> list[str]:
    """Keys of the policies that select workloads by label, but that no workload names.

    Which labels they select is not in a policy: whoever sends it tells each workload. So nothing
    can be said of one that is not in force yet.
    """
    wanted = {policy.key for policy in policies if policy.scope is Scope.WORKLOAD_SELECTOR}
    for workload in state.workloads if wanted else ():
        wanted.difference_update(workload.authorization_policies)
    return sorted(wanted)
