"""The mesh file of a lab is one that a proxy takes, and says what the lab's documents promise."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from nodenet.lab import mesh
from nodenet.lab.plan import Family, LabPlan, make_plan
from nodenet.mesh import static_file
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.rbac import RbacContext, evaluate
from nodenet.mesh.static_file import StaticMesh


def _read(plan: LabPlan) -> StaticMesh:
    return static_file.parse(mesh.mesh_file(plan), file="mesh.yaml")


def _workloads(plan: LabPlan) -> dict[str, Workload]:
    return {each.name: each for each in _read(plan).workloads}


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("nodes, pods", [(1, 1), (2, 2), (3, 4)])
def test_every_pod_is_a_workload_where_it_is(nodes: int, pods: int, family: Family) -> None:
    plan = make_plan(nodes=nodes, pods=pods, family=family)
    found = _workloads(plan)
    assert list(found) == [pod.name for pod in plan.pods]
    for pod in plan.pods:
        workload = found[pod.name]
        assert workload.ips == pod.addresses
        assert (workload.namespace, workload.node) == ("lab", pod.node)
        assert workload.is_hbone is pod.enrolled
        assert workload.identity == mesh.identity(pod)
    assert list(_read(plan).notices()) == []


def test_identities_are_of_one_service_account_a_pod() -> None:
    plan = make_plan()
    assert mesh.identity(plan.pods[2]) == "spiffe://cluster.local/ns/lab/sa/a2"
    assert len({mesh.identity(pod) for pod in plan.pods}) == len(plan.pods)


def test_one_service_with_an_endpoint_on_each_of_two_nodes() -> None:
    plan = make_plan(nodes=3)
    [service] = _read(plan).services
    assert service.key == "lab/web.lab"
    assert [str(vip) for vip in service.vips] == ["/10.77.255.1", "/fd77:ff::1"]
    assert service.ports == ((80, 8080),)
    members = [w for w in _read(plan).workloads if w.ports_in(service.key) is not None]
    assert [(w.name, w.node) for w in members] == [("a1", "n1"), ("a2", "n2")]


@pytest.mark.parametrize(
    "caller, port, allowed",
    [("a1", 8081, True), ("a2", 8081, False), ("a2", 8080, True), (None, 8081, False),
     (None, 8080, True)],
)  # fmt: skip
def test_the_guarded_port_is_for_one_pod(caller: str | None, port: int, allowed: bool) -> None:
    plan = make_plan()
    policies = _read(plan).policies
    assert [policy.key for policy in policies] == [mesh.policy_name(plan)] == ["lab/only-a1"]
    identity = None if caller is None else f"spiffe://cluster.local/ns/lab/sa/{caller}"
    address = ipaddress.ip_address("10.77.9.9")
    context = RbacContext(address, identity, Endpoint(plan.pods[2].address(4), port))
    assert evaluate(policies, context).allowed is allowed


def test_without_members_there_is_nothing_but_workloads() -> None:
    plan = make_plan(enroll=False)
    found = _read(plan)
    assert (found.services, found.policies) == ((), ())
    assert mesh.policy_name(plan) is None


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "mesh" / "mesh.yaml"
    for nodes in (2, 3):
        plan = make_plan(nodes=nodes)
        mesh.write(plan, path)
        assert path.read_text() == mesh.mesh_file(plan)
    assert [entry.name for entry in path.parent.iterdir()] == ["mesh.yaml"]
    assert path.read_text().startswith("# The mesh of lab default: made by `nodenet lab up`")
