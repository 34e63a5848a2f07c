"""Load balancing, rule by rule; cases of ztunnel: src/state.rs, test_load_balance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.load_balancing import (
    Resolution,
    candidates,
    choose_waypoint,
    locality_rank,
    waypoints_listed,
)
from nodenet.mesh.model import (
    ApplicationTunnel,
    HealthPolicy,
    LoadBalancing,
    Locality,
    Mode,
    Placement,
    Scope,
    Service,
    Status,
    Visibility,
    WeightedWaypoint,
    Workload,
)
from nodenet.mesh.state import Batch, MeshState
from tests.unit.mesh.building import Fixed, mesh, pod, ref, rng, service

S = "ns/s.ns"
NETWORK, REGION, ZONE, SUBZONE, NODE, CLUSTER = (
    Scope.NETWORK, Scope.REGION, Scope.ZONE, Scope.SUBZONE, Scope.NODE, Scope.CLUSTER,
)  # fmt: skip
STANDARD, WAYPOINT = Resolution.STANDARD, Resolution.WAYPOINT
SOURCE = pod(
    "source", network="net", node="node", cluster_id="cluster", locality=Locality("r", "z", "s")
)


def member(name: str, **fields: Any) -> Workload:
    fields.setdefault("addresses", ("10.0.0.1",))
    fields.setdefault("services", [S])
    fields.setdefault("network", "net")
    return pod(name, *fields.pop("addresses"), **fields)


def names(
    state: MeshState,
    *,
    port: int = 80,
    resolution: Resolution = STANDARD,
    source: Workload = SOURCE,
) -> set[str]:
    found = state.service(S)
    assert found is not None
    chosen = candidates(state.services, found, source, port, resolution)
    return {endpoint.uid.rpartition("/")[2] for endpoint in chosen.endpoints}


FILTERS: dict[str, tuple[dict[str, Any], dict[str, Any], Resolution, int, bool]] = {
    # service, workload, resolution, port, whether the workload is a candidate
    "listed-port": ({}, {}, STANDARD, 80, True),
    "unlisted-port": ({}, {}, STANDARD, 81, False),
    "unlisted-port-though-mapped": ({}, {"services": {S: {81: 8081}}}, STANDARD, 81, False),
    "named-port-mapped": ({"ports": {80: 0}}, {"services": {S: {80: 8080}}}, STANDARD, 80, True),
    "named-port-not-mapped": ({"ports": {80: 0}}, {}, STANDARD, 80, False),
    "hostname-only": ({}, {"addresses": (), "hostname": "a.example"}, STANDARD, 80, True),
    "nothing": ({}, {"addresses": ()}, STANDARD, 80, False),
    "nothing-but-a-gateway-here": (
        {}, {"addresses": (), "network_gateway": ref("net/10.0.0.9")}, STANDARD, 80, False,
    ),
    "nothing-but-a-gateway-there": (
        {}, {"addresses": (), "network": "far", "network_gateway": ref("far/10.0.0.9")},
        STANDARD, 80, True,
    ),
    "nothing-there-and-no-gateway": ({}, {"addresses": (), "network": "far"}, STANDARD, 80, False),
    "an-address-there": ({}, {"network": "far"}, STANDARD, 80, True),
    "unhealthy": ({}, {"status": Status.UNHEALTHY}, STANDARD, 80, False),
    "unhealthy-allowed": (
        {"load_balancing": LoadBalancing(health_policy=HealthPolicy.ALLOW_ALL)},
        {"status": Status.UNHEALTHY}, STANDARD, 80, True,
    ),
    "waypoint-listed-port": ({"ports": {15008: 15008}}, {}, WAYPOINT, 15008, True),
    "waypoint-named-port-not-mapped": ({"ports": {15008: 0}}, {}, WAYPOINT, 15008, True),
    "waypoint-unlisted-port": ({}, {}, WAYPOINT, 15008, False),
    "waypoint-unlisted-port-with-a-tunnel": (
        {}, {"application_tunnel": ApplicationTunnel(port=15088)}, WAYPOINT, 15008, True,
    ),
    "waypoint-unlisted-port-with-a-tunnel-without-port": (
        {}, {"application_tunnel": ApplicationTunnel()}, WAYPOINT, 15008, True,
    ),
    "standard-ignores-tunnels": (
        {}, {"application_tunnel": ApplicationTunnel(port=15088)}, STANDARD, 15008, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("of_service", "of_workload", "resolution", "port", "expected"), FILTERS.values(), ids=FILTERS
)
def test_filter(
    of_service: dict[str, Any],
    of_workload: dict[str, Any],
    resolution: Resolution,
    port: int,
    expected: bool,
) -> None:
    state = mesh(service("s", **of_service), member("a", **of_workload))
    assert names(state, port=port, resolution=resolution) == ({"a"} if expected else set())


HERE = Placement("net", "cluster", "node", Locality("r", "z", "s"))


def place(shared: str) -> Placement:
    """Shares with HERE what the letters say: network, cluster, node (o), region, zone, subzone."""

    def part(letter: str, value: str) -> str:
        return value if letter in shared else "other"

    return Placement(
        part("n", HERE.network),
        part("c", HERE.cluster_id),
        part("o", HERE.node),
        Locality(part("r", "r"), part("z", "z"), part("s", "s")),
    )


@pytest.mark.parametrize(
    ("scopes", "shared", "rank"),
    [
        ((REGION, ZONE, SUBZONE), "rzs", 3),
        ((REGION, ZONE, SUBZONE), "rz", 2),
        ((REGION, ZONE, SUBZONE), "r", 1),
        ((REGION, ZONE, SUBZONE), "zs", 0),
        ((REGION, ZONE, SUBZONE), "rs", 1),
        ((), "rzsnco", 0),
        ((NODE,), "o", 1),
        ((CLUSTER,), "c", 1),
        ((NETWORK,), "n", 1),
        ((NETWORK,), "rzs", 0),
        # NETWORK first: worth more than the rest, and its mismatch stops nothing
        ((NETWORK, REGION, ZONE), "nrz", 5),
        ((NETWORK, REGION, ZONE), "nr", 4),
        ((NETWORK, REGION, ZONE), "n", 3),
        ((NETWORK, REGION, ZONE), "nz", 3),
        ((NETWORK, REGION, ZONE), "rz", 2),
        ((NETWORK, REGION, ZONE), "r", 1),
        ((NETWORK, REGION, ZONE), "z", 0),
        ((NETWORK, REGION, ZONE), "", 0),
        # elsewhere it is a scope like the others
        ((REGION, NETWORK, ZONE), "rz", 1),
        ((REGION, NETWORK, ZONE), "rnz", 3),
    ],
)
def test_rank(scopes: tuple[Scope, ...], shared: str, rank: int) -> None:
    assert locality_rank(scopes, HERE, place(shared)) == rank


def test_empty_localities_are_equal() -> None:
    nowhere = Placement("net", "cluster", "node", Locality())
    assert locality_rank((REGION, ZONE, SUBZONE), nowhere, nowhere) == 3


LOCALITIES = {
    "same-subzone": Locality("r", "z", "s"),
    "same-zone": Locality("r", "z", "other"),
    "same-region": Locality("r", "other", "s"),
    "far": Locality("other", "z", "s"),
}


@pytest.mark.parametrize(
    ("mode", "scopes", "there", "expected"),
    [
        pytest.param(Mode.STANDARD, (REGION, ZONE), "all", "all", id="standard-ranks-nothing"),
        pytest.param(Mode.FAILOVER, (REGION, ZONE, SUBZONE), "all", {"same-subzone"},
                     id="failover-nearest"),
        pytest.param(Mode.FAILOVER, (REGION, ZONE), "all", {"same-subzone", "same-zone"},
                     id="failover-ties"),
        pytest.param(Mode.FAILOVER, (REGION, ZONE, SUBZONE), {"same-region", "far"},
                     {"same-region"}, id="failover-next"),
        pytest.param(Mode.FAILOVER, (REGION, ZONE, SUBZONE), {"far"}, {"far"},
                     id="failover-to-anywhere"),
        pytest.param(Mode.FAILOVER, (), "all", "all", id="failover-without-scopes"),
        pytest.param(Mode.STRICT, (REGION, ZONE, SUBZONE), "all", {"same-subzone"},
                     id="strict-all-scopes"),
        pytest.param(Mode.STRICT, (REGION,), "all",
                     {"same-subzone", "same-zone", "same-region"}, id="strict-one-scope"),
        pytest.param(Mode.STRICT, (REGION, ZONE, SUBZONE), {"same-zone", "far"}, set(),
                     id="strict-none-left"),
        pytest.param(Mode.STRICT, (), "all", "all", id="strict-without-scopes"),
        pytest.param(Mode.STRICT, (NETWORK, REGION), "all",
                     {"same-subzone", "same-zone", "same-region"}, id="strict-network-first"),
    ],
)  # fmt: skip
def test_modes(mode: Mode, scopes: tuple[Scope, ...], there: Any, expected: Any) -> None:
    present = set(LOCALITIES) if there == "all" else there
    state = mesh(
        service("s", load_balancing=LoadBalancing(scopes, mode)),
        *(member(name, locality=LOCALITIES[name]) for name in sorted(present)),
    )
    assert names(state) == (present if expected == "all" else expected)


def test_strict_network_first_is_no_mere_preference() -> None:
    state = mesh(
        service("s", load_balancing=LoadBalancing((NETWORK, REGION), Mode.STRICT)),
        member("far", network="far", locality=Locality("r")),
    )
    assert names(state) == set()


def test_network_preference_across_endpoints() -> None:
    state = mesh(
        service("s", load_balancing=LoadBalancing((NETWORK, REGION, ZONE), Mode.FAILOVER)),
        member("near", network="far", locality=Locality("r", "z")),
        member("home", network="net", locality=Locality("other")),
    )
    assert names(state) == {"home"}
    state.apply(Batch(removals=["c1//Pod/ns/home"]))
    assert names(state) == {"near"}


def test_candidates_follow_every_change() -> None:
    state = mesh(service("s"), member("a"))
    assert names(state) == {"a"}
    for batch, expected in (
        (Batch(upserts=[member("b")]), {"a", "b"}),
        (Batch(upserts=[member("a", status=Status.UNHEALTHY)]), {"b"}),
        (Batch(upserts=[service("s", ports={81: 81})]), set()),
        (Batch(upserts=[service("s")], removals=["c1//Pod/ns/b"]), set()),
        (Batch(upserts=[member("a")]), {"a"}),
    ):
        state.apply(batch)
        assert names(state) == expected


def test_candidates_are_kept_for_equal_sources_only() -> None:
    state = mesh(
        service("s", load_balancing=LoadBalancing((NODE,), Mode.FAILOVER)),
        member("a", node="node"),
        member("b", node="other"),
    )
    found = state.service(S)
    assert found is not None
    neighbour = pod(
        "n", network="net", node="node", cluster_id="cluster", locality=Locality("r", "z", "s")
    )
    elsewhere = pod("m", network="net", node="other", cluster_id="cluster")
    first = candidates(state.services, found, SOURCE, 80, STANDARD)
    assert candidates(state.services, found, neighbour, 80, STANDARD) is first
    assert names(state, source=elsewhere) == {"b"}
    assert names(state) == {"a"}
    assert names(state, port=81) == set()


def test_candidates_of_a_waypoint_are_kept_apart() -> None:
    state = mesh(service("s", ports={}), member("a", application_tunnel=ApplicationTunnel()))
    assert names(state, port=15008, resolution=WAYPOINT) == {"a"}
    assert names(state, port=15008, resolution=STANDARD) == set()


W1, W2, W3 = ref("ns/w1"), ref("ns/w2"), ref("/10.0.0.3")


@pytest.mark.parametrize(
    ("waypoint", "weights", "point", "expected"),
    [
        pytest.param(None, (), 0.5, None, id="none"),
        pytest.param(W3, (), 0.5, W3, id="the-only-one"),
        pytest.param(W3, (0, 0), 0.5, W3, id="all-weights-zero"),
        pytest.param(None, (0, 0), 0.5, None, id="all-weights-zero-and-no-other"),
        pytest.param(W3, (1, 3), 0.2, W1, id="first"),
        pytest.param(W3, (1, 3), 0.3, W2, id="second"),
        pytest.param(None, (1, 0), 0.999, W1, id="never-one-of-weight-zero"),
        pytest.param(None, (0, 1), 0.0, W2, id="never-the-first-of-weight-zero"),
    ],
)
def test_weighted_waypoints(
    waypoint: Any, weights: tuple[int, ...], point: float, expected: Any
) -> None:
    found = service(
        "s",
        waypoint=waypoint,
        weighted_waypoints=tuple(
            WeightedWaypoint(each, weight)
            for each, weight in zip((W1, W2), weights, strict=bool(weights))
        ),
    )
    chosen = choose_waypoint(found, Fixed(point))
    assert chosen == expected
    if chosen is not None:
        listed = waypoints_listed(found, chosen)
        assert sum(each.probability for each in listed) == pytest.approx(1)
        assert [each.name for each in listed if each.chosen] == [str(chosen.destination)]


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Service, list[Workload]]:
    some = st.sampled_from(("", "net", "r", "z"))
    members = draw(
        st.lists(
            st.builds(
                pod,
                st.uuids().map(str),
                services=st.sampled_from(([S], {S: {80: 8080}}, [], ["ns/other.ns"])),
                network=some,
                node=some,
                locality=st.builds(Locality, some, some, some),
                status=st.sampled_from(Status),
                capacity=st.integers(0, 3),
                hostname=st.sampled_from(("", "a.example")),
            ),
            max_size=8,
        )
    )
    balancing = st.builds(
        LoadBalancing,
        st.lists(st.sampled_from(Scope), unique=True).map(tuple),
        st.sampled_from(Mode),
        st.sampled_from(HealthPolicy),
    )
    found = service(
        "s",
        ports=draw(st.sampled_from(({80: 8080}, {80: 0}, {81: 81}))),
        load_balancing=draw(st.none() | balancing),
        visibility=draw(st.sampled_from(Visibility)),
    )
    return found, members


@given(meshes(), st.sampled_from(Resolution), st.integers(0, 2**32))
def test_never_one_that_must_not(
    drawn: tuple[Service, list[Workload]], resolution: Resolution, seed: int
) -> None:
    """Whatever the mesh: only healthy (or allowed), reachable members with capacity are chosen."""
    found, members = drawn
    state = mesh(found, *members)
    chosen = candidates(state.services, found, SOURCE, 80, resolution).choose(rng(seed))
    if chosen is None:
        return
    workload = state.workload(chosen.uid)
    assert workload is not None and workload in members
    assert workload.ports_in(S) is not None
    assert workload.capacity > 0
    assert workload.status is Status.HEALTHY or found.health_policy is HealthPolicy.ALLOW_ALL
    assert workload.addresses or workload.hostname or workload.network_gateway
    if found.mode is Mode.STRICT and found.load_balancing is not None:
        here = Placement(SOURCE.network, SOURCE.cluster_id, SOURCE.node, SOURCE.locality)
        scopes = found.load_balancing.routing_preference
        assert locality_rank(scopes, here, chosen.placement) >= len(scopes)
