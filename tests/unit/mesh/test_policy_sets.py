"""Compiled sets follow the policies of the state, and are shared while nothing changes."""

from __future__ import annotations

import ipaddress

from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.policy import Action, Policy, Rule, Scope
from nodenet.mesh.policy_sets import PolicySets
from nodenet.mesh.rbac import RbacContext
from nodenet.mesh.state import Batch, MeshState

CONTEXT = RbacContext(
    ipaddress.ip_address("10.0.0.1"), None, Endpoint(ipaddress.ip_address("10.0.0.2"), 80)
)


def deny(name: str, scope: Scope, namespace: str = "shop") -> Policy:
    return Policy(name=name, namespace=namespace, scope=scope, action=Action.DENY, rules=(Rule(),))


def workload(name: str, *policies: str, namespace: str = "shop") -> Workload:
    return Workload(uid=name, name=name, namespace=namespace, authorization_policies=policies)


def denied_by(sets: PolicySets, of: Workload) -> str | None:
    return sets.of(of).evaluate(CONTEXT).policy


def test_a_set_follows_the_policies() -> None:
    state = MeshState()
    sets = PolicySets(state)
    db = workload("db")
    assert denied_by(sets, db) is None
    state.apply(Batch(upserts=[deny("all", Scope.GLOBAL, "istio-system")]))
    assert denied_by(sets, db) == "istio-system/all"
    state.apply(Batch(policy_removals=["istio-system/all"]))
    assert denied_by(sets, db) is None


def test_scopes() -> None:
    state = MeshState()
    state.apply(Batch(upserts=[deny("ns", Scope.NAMESPACE), deny("sel", Scope.WORKLOAD_SELECTOR)]))
    sets = PolicySets(state)
    assert denied_by(sets, workload("a")) == "shop/ns"
    assert denied_by(sets, workload("b", namespace="mail")) is None
    assert denied_by(sets, workload("c", "shop/sel", namespace="mail")) == "shop/sel"


def test_workloads_with_the_same_policies_share_a_set() -> None:
    sets = PolicySets(MeshState())
    assert sets.of(workload("a", "x/y")) is sets.of(workload("b", "x/y"))
    assert sets.of(workload("a", "x/y")) is not sets.of(workload("a"))


def test_a_flood_of_policy_lists_is_bounded() -> None:
    state = MeshState()
    sets = PolicySets(state)
    first = sets.of(workload("a"))
    for number in range(1024):
        state_of = workload("a", namespace=f"n{number}")
        sets.of(state_of)
    assert sets.of(workload("a")) is not first
