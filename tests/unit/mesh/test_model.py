"""The model: identities, ports, families, and that it survives being encoded."""

from __future__ import annotations

import msgspec
import pytest

from nodenet.mesh.model import (
    ApplicationTunnel,
    IpFamilies,
    LoadBalancing,
    Locality,
    Mode,
    Scope,
    Service,
    TunnelKind,
    Visibility,
    WeightedWaypoint,
    Workload,
    ip_of,
    target_port,
)
from tests.unit.mesh.building import at, ip, packed, pod, ref, service


def test_identity() -> None:
    assert Workload(uid="u", namespace="shop").identity == (
        "spiffe://cluster.local/ns/shop/sa/default"
    )
    cart = pod("cart", namespace="shop", trust_domain="td")
    assert cart.identity == "spiffe://td/ns/shop/sa/cart"


@pytest.mark.parametrize("text", ["10.0.0.1:80", "[fd00::1]:443"])
def test_an_endpoint_as_text(text: str) -> None:
    assert str(at(text)) == text


def test_addresses() -> None:
    found = pod("a", "10.0.0.1", "fd00::1")
    assert found.ips == (ip("10.0.0.1"), ip("fd00::1"))
    assert found.owns(ip("fd00::1"))
    assert not found.owns(ip("10.0.0.2"))
    with pytest.raises(ValueError, match="4 or 16 bytes, not 5"):
        ip_of(b"12345")


def test_target_ports() -> None:
    ports = ((80, 8080), (443, 0))
    assert [target_port(ports, port) for port in (80, 443, 81)] == [8080, 0, None]


def test_ports_of_a_membership() -> None:
    found = pod("a", services={"ns/s": {80: 8080}})
    assert found.ports_in("ns/s") == ((80, 8080),)
    assert found.ports_in("ns/other") is None


@pytest.mark.parametrize(
    ("families", "v4", "v6"),
    [
        (IpFamilies.AUTOMATIC, True, True),
        (IpFamilies.DUAL, True, True),
        (IpFamilies.IPV4_ONLY, True, False),
        (IpFamilies.IPV6_ONLY, False, True),
    ],
)
def test_families(families: IpFamilies, v4: bool, v6: bool) -> None:
    assert families.accepts(packed("10.0.0.1")) is v4
    assert families.accepts(packed("fd00::1")) is v6


@pytest.mark.parametrize(
    ("visibility", "namespace", "visible"),
    [
        (Visibility.PUBLIC, "other", True),
        (Visibility.NAMESPACE, "ns", True),
        (Visibility.NAMESPACE, "other", False),
        (Visibility.NAMESPACE, None, True),
    ],
)
def test_visibility(visibility: Visibility, namespace: str | None, visible: bool) -> None:
    assert service("s", visibility=visibility).visible_to(namespace) is visible


def test_encoded_and_back() -> None:
    workload = pod(
        "a",
        "10.0.0.1",
        "fd00::1",
        services={"ns/s": {80: 0}, "ns/t": {}},
        waypoint=ref("ns/waypoint", 15009),
        network_gateway=ref("remote/192.0.2.1"),
        locality=Locality("r", "z", "s"),
        application_tunnel=ApplicationTunnel(TunnelKind.PROXY, 15088),
        authorization_policies=("ns/p",),
        capacity=7,
    )
    encoded = msgspec.msgpack.encode(workload)
    assert msgspec.msgpack.decode(encoded, type=Workload) == workload
    found = service(
        "s",
        "10.96.0.1",
        "10.97.0.0/16",
        weighted_waypoints=(WeightedWaypoint(ref("ns/w"), 3),),
        load_balancing=LoadBalancing((Scope.ZONE,), Mode.STRICT),
        visibility=Visibility.NAMESPACE,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Service) == found
    assert found.cidr_vips and found.vips
