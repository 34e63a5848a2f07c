"""References to waypoints and gateways (spec: resolving a waypoint or gateway reference)."""

from __future__ import annotations

import pytest

from nodenet.mesh import gateways
from nodenet.mesh.model import GatewayAddress, Visibility
from nodenet.mesh.refused import UnknownNetworkGateway, UnknownWaypoint
from tests.unit.mesh.building import at, ip, mesh, pod, ref, rng, service

SOURCE = pod("source", "10.0.0.1")
TARGET = at("10.96.0.1:80")
STATE = mesh(
    service("gw", "10.96.0.9", ports={15008: 15010}),
    service("hidden", "10.96.0.8", namespace="far", visibility=Visibility.NAMESPACE),
    pod("a", "10.0.1.1", services=["ns/gw.ns"]),
    pod("b", "10.0.1.2", services=["ns/gw.ns", "far/hidden.far"], hostname="b.example"),
)


def waypoint(reference: GatewayAddress) -> tuple[str, int, str]:
    found = gateways.waypoint(STATE, SOURCE, reference, TARGET, rng(), "Z8")
    return found.workload.name, found.port, str(found.towards)


@pytest.mark.parametrize(
    ("reference", "names", "port", "towards"),
    [
        ("/10.0.1.1", "a", 15008, "10.0.1.1:15008"),
        ("/10.96.0.9", "ab", 15010, "10.96.0.9:15008"),
        ("ns/gw.ns", "ab", 15010, str(TARGET)),
        ("ns/b.example", "b", 15008, str(TARGET)),
    ],
)
def test_resolved(reference: str, names: str, port: int, towards: str) -> None:
    found = waypoint(ref(reference))
    assert found[0] in names
    assert found[1:] == (port, towards)


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("far/10.0.1.1", "far/10.0.1.1"),
        ("far/gw.ns", "gw.ns"),
        # a VIP is looked up for the source, and this one is not for its namespace
        ("/10.96.0.8", "/10.96.0.8"),
    ],
)
def test_unknown(reference: str, what: str) -> None:
    with pytest.raises(UnknownWaypoint) as caught:
        waypoint(ref(reference))
    assert (caught.value.waypoint, caught.value.row) == (what, "Z8")
    with pytest.raises(UnknownNetworkGateway) as gone:
        gateways.network_gateway(STATE, SOURCE, ref(reference), TARGET, rng(), "Z6")
    assert (gone.value.gateway, gone.value.row) == (what, "Z6")


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("/10.0.1.1", ["a"]),
        ("/10.96.0.9", ["a", "b"]),
        ("ns/gw.ns", ["a", "b"]),
        ("ns/b.example", ["b"]),
        ("ns/unknown", []),
    ],
)
def test_members(reference: str, names: list[str]) -> None:
    assert [each.name for each in gateways.members(STATE, ref(reference))] == names


@pytest.mark.parametrize(
    ("source", "client", "is_from"),
    [("a", "10.0.1.1", True), ("a", "10.0.1.2", False), ("other", "10.0.1.1", False)],
)
def test_from_a_gateway(source: str, client: str, is_from: bool) -> None:
    found = gateways.is_from(STATE, ref("ns/gw.ns"), pod(source), ip(client))
    assert found is is_from
