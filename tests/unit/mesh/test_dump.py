"""The mesh part of a dump, and that it is the mesh."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh import dump
from nodenet.mesh.model import Service, Status, Workload
from nodenet.mesh.policy import Action, Policy, Rule, Scope
from nodenet.mesh.static_file import StaticMesh, from_dump, parse
from tests.unit.mesh.building import mesh, pod, ref, service

POLICY = Policy(
    name="p", namespace="ns", scope=Scope.NAMESPACE, action=Action.DENY, rules=(Rule(),)
)
STATIC = StaticMesh(
    workloads=(pod("a", "10.0.0.1", services={"ns/s.ns": {80: 9090}}),),
    services=(service("s", "10.96.0.1"),),
    policies=(POLICY,),
)


def test_shape() -> None:
    late = pod("late", services={"ns/unknown": {80: 1}})
    sick = pod("sick", services=["ns/s.ns"], status=Status.UNHEALTHY)
    state = mesh(*STATIC.resources, late, sick)
    found = dump.mesh(state, STATIC)
    assert list(found) == ["workloads", "services", "policies", "stagedServices", "staticConfig"]
    assert [each["name"] for each in found["workloads"]] == ["a", "late", "sick"]
    [of_s] = found["services"]
    assert of_s["endpoints"] == {
        "c1//Pod/ns/a": {
            "workloadUid": "c1//Pod/ns/a", "port": {"80": 9090}, "status": "Healthy",
        },
    }  # fmt: skip
    assert [each["name"] for each in found["policies"]] == ["p"]
    assert found["stagedServices"] == {
        "ns/unknown": {late.uid: {"workloadUid": late.uid, "port": {"80": 1}, "status": "Healthy"}}
    }
    assert list(found["staticConfig"]) == ["workloads", "policies", "services"]
    assert parse(json.dumps(found["staticConfig"])) == STATIC


def test_written_in_pieces_is_the_same() -> None:
    state = mesh(*STATIC.resources)
    rest = {"version": {"version": "1"}, "config": None}
    pieces = list(dump.written(state, STATIC, rest))
    assert json.loads(b"".join(pieces)) == {**dump.mesh(state, STATIC), **rest}
    text = b"".join(pieces).decode()
    assert text == json.dumps(json.loads(text), indent=2) + "\n"


def test_nothing() -> None:
    empty: dict[str, object] = {"workloads": [], "services": [], "policies": []}
    text = b"".join(dump.written(mesh())).decode()
    assert json.loads(text) == {**empty, "stagedServices": {}, "staticConfig": empty}
    assert text == json.dumps(json.loads(text), indent=2) + "\n"


def test_a_large_mesh_is_written_in_small_pieces() -> None:
    state = mesh(*(pod(f"p{i}") for i in range(500)))
    assert max(map(len, dump.written(state))) < 2000


NAMES = st.sampled_from("abc")
PODS = st.builds(
    pod,
    NAMES,
    services=st.dictionaries(
        st.sampled_from(("ns/a.ns", "ns/b.ns", "ns/unknown")),
        st.dictionaries(st.integers(1, 99), st.integers(0, 99), max_size=2),
        max_size=2,
    ),
    waypoint=st.sampled_from((None, ref("ns/w"))),
)


@given(st.lists(PODS | st.builds(service, NAMES, st.just("10.96.0.1")), max_size=6))
def test_round_trip(resources: list[Workload | Service]) -> None:
    """A dump read back and applied gives the same dump."""
    state = mesh(*resources, POLICY)
    text = b"".join(dump.written(state))
    again = from_dump(text)
    assert {each.uid: each for each in again.workloads} == {w.uid: w for w in state.workloads}
    assert again.services == tuple(state.services)
    # as objects: the order of endpoints is that of their last change
    assert dump.mesh(mesh(*again.resources)) == json.loads(text)
