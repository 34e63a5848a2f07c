"""Batches: their order, what subscribers see, and that nothing is half done.

Cases of ztunnel: src/state.rs, src/xds.rs.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.model import Service, Status, Workload
from nodenet.mesh.policy import Action, Policy, Scope
from nodenet.mesh.state import Batch, Change, MeshState
from tests.unit.mesh.building import ip, mesh, pod, ref, service

S = "ns/s.ns"
POLICY = Policy(name="p", namespace="ns", scope=Scope.NAMESPACE, action=Action.DENY)


def endpoints(state: MeshState, key: str = S) -> set[str]:
    found = state.service(key)
    assert found is not None
    return {uid.rpartition("/")[2] for uid in state.endpoints(found)}


def test_lookups() -> None:
    a = pod("a", "10.0.0.1", "10.96.0.9", services=[S], hostname="a.example")
    s = service("s", "10.96.0.1", "10.96.0.9")
    state = mesh(a, s, POLICY)
    assert state.workload(a.uid) == a
    assert state.service(S) == s
    assert state.workload_at("", ip("10.0.0.1")) == a
    assert state.workload_named("ns", "a", "a") == a
    assert state.service_at("", ip("10.96.0.1"), "ns") == s
    assert state.service_named("s.ns", None) == s
    assert state.policies_of(a) == [POLICY]
    # a workload before a service
    assert state.address("", ip("10.96.0.9"), "ns") == a
    assert state.address("", ip("10.96.0.1"), "ns") == s
    assert state.address("", ip("10.96.0.2"), "ns") is None


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("/10.0.0.1", "a"),
        ("/10.96.0.1", "s"),
        ("other/10.0.0.1", None),
        ("ns/s.ns", "s"),
        ("ns/a.example", "a"),
        ("other/a.example", None),
        ("ns/b.example", None),
        pytest.param("ns/both.example", "both", id="a-service-before-a-workload"),
    ],
)
def test_destinations(reference: str, found: str | None) -> None:
    state = mesh(
        pod("a", "10.0.0.1", hostname="a.example"),
        pod("b", hostname="both.example"),
        service("s", "10.96.0.1"),
        service("both", hostname="both.example"),
    )
    destination = state.destination(ref(reference).destination)
    assert (destination and destination.name) == found


ORDERS: dict[str, tuple[list[Batch], set[str]]] = {
    "service-then-workload": ([Batch(upserts=[service("s"), pod("a", services=[S])])], {"a"}),
    "workload-then-service": ([Batch(upserts=[pod("a", services=[S]), service("s")])], {"a"}),
    "in-two-batches": (
        [Batch(upserts=[pod("a", services=[S])]), Batch(upserts=[service("s")])],
        {"a"},
    ),
    "upserts-before-removals": (
        [Batch(upserts=[service("s"), pod("a", services=[S])], removals=["c1//Pod/ns/a"])],
        set(),
    ),
    "a-workload-twice-in-a-batch": (
        [Batch(upserts=[service("s"), pod("a", services=[S]), pod("a", "10.0.0.1")])],
        set(),
    ),
    "a-workload-back-in-a-batch": (
        [Batch(upserts=[service("s"), pod("a", services=[S]), pod("a"), pod("a", services=[S])])],
        {"a"},
    ),
    "reinserted-with-another-service": (
        [
            Batch(upserts=[service("s"), service("t"), pod("a", services=[S])]),
            Batch(upserts=[pod("a", services=["ns/t.ns"])]),
        ],
        set(),
    ),
    "reinserted-unhealthy": (
        [
            Batch(upserts=[service("s"), pod("a", services=[S]), pod("b", services=[S])]),
            Batch(upserts=[pod("a", services=[S], status=Status.UNHEALTHY)]),
        ],
        {"b"},
    ),
    "a-pod-replaced-by-another": (
        [
            Batch(upserts=[service("s"), pod("a", services=[S])]),
            Batch(upserts=[pod("b", services=[S])], removals=["c1//Pod/ns/a"]),
        ],
        {"b"},
    ),
    "the-service-replaced": (
        [
            Batch(upserts=[service("s"), pod("a", services=[S])]),
            Batch(upserts=[service("s", ports={1: 1})]),
        ],
        {"a"},
    ),
    "the-service-gone-and-back": (
        [
            Batch(upserts=[service("s"), pod("a", services=[S])]),
            Batch(removals=[S]),
            Batch(upserts=[service("s")]),
        ],
        {"a"},
    ),
    "the-workload-gone-while-the-service-was": (
        [
            Batch(upserts=[service("s"), pod("a", services=[S])]),
            Batch(removals=[S]),
            Batch(removals=["c1//Pod/ns/a"]),
            Batch(upserts=[service("s")]),
        ],
        set(),
    ),
}


@pytest.mark.parametrize(("batches", "expected"), ORDERS.values(), ids=ORDERS)
def test_endpoints_follow_the_order(batches: list[Batch], expected: set[str]) -> None:
    state = MeshState()
    for batch in batches:
        state.apply(batch)
    assert endpoints(state) == expected
    assert state.staged() == {}


@pytest.mark.parametrize(
    ("name", "left"),
    [
        pytest.param("c1//Pod/ns/a", {"s"}, id="workload"),
        pytest.param("ns/s.ns", {"a"}, id="service"),
        pytest.param("ns/s.ns/x", {"a", "s"}, id="more-slashes-are-no-service"),
        pytest.param("nothing", {"a", "s"}, id="unknown"),
        pytest.param("", {"a", "s"}, id="empty"),
    ],
)
def test_removal_by_name(name: str, left: set[str]) -> None:
    state = mesh(pod("a"), service("s"))
    state.apply(Batch(removals=[name]))
    assert {each.name for each in (*state.workloads, *state.services)} == left


def test_a_hostname_with_a_slash_is_no_name_to_remove() -> None:
    state = mesh(service("s", hostname="s/x"))
    state.apply(Batch(removals=["ns/s/x"]))
    assert len(state.services) == 1


def test_a_workload_whose_uid_looks_like_a_service() -> None:
    state = mesh(pod("a", uid="ns/s.ns"), service("s"))
    state.apply(Batch(removals=["ns/s.ns"]))
    assert (len(state.workloads), len(state.services)) == (0, 1)


def test_policies_have_names_of_their_own() -> None:
    state = mesh(service("s", hostname="p"), POLICY)
    state.apply(Batch(removals=["ns/p"]))
    assert (len(state.services), len(state.policies)) == (0, 1)
    state.apply(Batch(policy_removals=["ns/p"]))
    assert len(state.policies) == 0


def test_what_cannot_be_encoded_changes_nothing() -> None:
    state = mesh(pod("a", "10.0.0.1"))
    broken: Any = pod("b", capacity=object())
    with pytest.raises(TypeError):
        state.apply(Batch(upserts=[pod("c"), broken], removals=["c1//Pod/ns/a"]))
    assert [each.name for each in state.workloads] == ["a"]
    assert state.version == 1


class Heard(list[Change]):
    """A subscriber that notes what it is told."""

    def __call__(self, change: Change) -> None:
        self.append(change)


def test_subscribers_hear_what_changed() -> None:
    state = mesh(pod("gone"), service("s"))
    heard = Heard()
    state.subscribe(heard)
    a = pod("a", services=[S])
    state.apply(Batch(upserts=[a, service("t"), POLICY], removals=["c1//Pod/ns/gone", S]))
    assert heard == [
        Change(
            version=2,
            workloads=(a,),
            removed_workloads=("c1//Pod/ns/gone",),
            services=("ns/t.ns", S),
            policies=True,
        )
    ]


def test_what_comes_as_it_was_is_not_mentioned() -> None:
    state = mesh(pod("a"), service("s"))
    heard = Heard()
    state.subscribe(heard)
    state.apply(Batch(upserts=[pod("a"), service("s")]))
    state.apply(Batch())
    state.apply(Batch(removals=["unknown"], policy_removals=["ns/unknown"]))
    assert heard == []
    assert state.version == 4


def test_versions() -> None:
    state = MeshState()
    seen = []
    for batch in (
        Batch(upserts=[pod("a")]),
        Batch(upserts=[POLICY]),
        Batch(upserts=[POLICY]),
        Batch(policy_removals=["ns/unknown"]),
        Batch(policy_removals=["ns/p"]),
    ):
        state.apply(batch)
        seen.append((state.version, state.policy_version))
    assert seen == [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3)]


def test_policy_subscribers_hear_policies_only() -> None:
    state = MeshState()
    heard = Heard()
    unsubscribe = state.subscribe(heard, policies_only=True)
    state.apply(Batch(upserts=[pod("a")]))
    state.apply(Batch(upserts=[POLICY]))
    state.apply(Batch(policy_removals=["ns/p"]))
    assert [change.version for change in heard] == [2, 3]
    unsubscribe()
    unsubscribe()
    state.apply(Batch(upserts=[POLICY]))
    assert len(heard) == 2


def test_subscribers_see_the_whole_batch() -> None:
    state = MeshState()
    seen: list[set[str]] = []
    state.subscribe(lambda change: seen.append(endpoints(state)))
    state.apply(Batch(upserts=[pod("a", services=[S]), service("s"), pod("b", services=[S])]))
    assert seen == [{"a", "b"}]


def test_a_failing_subscriber_keeps_nobody_from_hearing() -> None:
    state = MeshState()
    heard = Heard()

    def failing(change: Change) -> None:
        raise RuntimeError("this one")

    state.subscribe(failing)
    state.subscribe(heard)
    with pytest.raises(ExceptionGroup, match="subscribers") as caught:
        state.apply(Batch(upserts=[POLICY]))
    assert [str(each) for each in caught.value.exceptions] == ["this one"]
    assert len(heard) == 1
    assert len(state.policies) == 1


def test_identities_are_forgotten_with_their_last_workload() -> None:
    def local(name: str, **fields: Any) -> Workload:
        return pod(name, service_account="shared", node="n", **fields)

    state = mesh(local("a"), local("b"), pod("c", service_account="far", node="m"), node="n")
    heard = Heard()
    state.subscribe(heard)
    state.apply(Batch(removals=["c1//Pod/ns/a", "c1//Pod/ns/c"]))
    state.apply(Batch(upserts=[local("b", capacity=2)]))
    state.apply(Batch(removals=["c1//Pod/ns/b"]))
    assert [change.forgotten_identities for change in heard] == [
        (), (), ("spiffe://cluster.local/ns/ns/sa/shared",),
    ]  # fmt: skip


def test_replace() -> None:
    state = mesh(pod("a"), pod("b"), service("s"), service("t"), POLICY)
    heard = Heard()
    state.subscribe(heard)
    state.replace([pod("b", "10.0.0.2"), service("t"), pod("c")])
    assert {each.name for each in state.workloads} == {"b", "c"}
    assert [each.name for each in state.services] == ["t"]
    assert len(state.policies) == 0
    [change] = heard
    assert change.removed_workloads == ("c1//Pod/ns/a",)
    assert change.services == (S,)


NAMES = st.sampled_from("abc")
SERVICES = st.sampled_from(["s", "t"])
PODS = st.builds(
    lambda name, address, services, status: pod(
        name, f"10.0.0.{address}", services=[f"ns/{each}.ns" for each in services], status=status
    ),
    NAMES,
    st.integers(1, 3),
    st.lists(SERVICES, unique=True),
    st.sampled_from(Status),
)
BATCHES = st.builds(
    lambda upserts, removals: Batch(upserts=upserts, removals=removals),
    st.lists(PODS | st.builds(service, SERVICES, st.just("10.96.0.1")), max_size=4),
    st.lists(
        st.builds("c1//Pod/ns/{}".format, NAMES) | st.builds("ns/{}.ns".format, SERVICES),
        max_size=3,
    ),
)


@given(st.lists(BATCHES, max_size=6))
def test_any_history_leaves_what_its_end_says(batches: list[Batch]) -> None:
    """Against a model of dictionaries: indexes, endpoints and staged ones never drift."""
    state = MeshState()
    workloads: dict[str, Workload] = {}
    services: dict[str, Service] = {}
    for batch in batches:
        state.apply(batch)
        for each in batch.upserts:
            if isinstance(each, Workload):
                workloads[each.uid] = each
            elif isinstance(each, Service):
                services[each.key] = each
        for name in batch.removals:
            workloads.pop(name, None)
            services.pop(name, None)
    assert {each.uid: each for each in state.workloads} == workloads
    assert {each.key: each for each in state.services} == services
    for key in ("ns/s.ns", "ns/t.ns"):
        members = {
            uid for uid, each in workloads.items() if any(m.service == key for m in each.services)
        }
        attached = state.services.endpoints(key) if key in services else state.staged().get(key, {})
        assert set(attached) == members
    for last in (1, 2, 3):
        found = state.workload_at("", ip(f"10.0.0.{last}"))
        owners = [each for each in workloads.values() if each.owns(ip(f"10.0.0.{last}"))]
        assert found in owners if owners else found is None
    assert (state.service_at("", ip("10.96.0.1"), "ns") is None) is (not services)
