"""The outbound decision, row by row; cases of ztunnel: src/proxy/outbound.rs and src/state.rs.

Each case is a mesh, a destination, and what comes of it in one line: row, protocol, what is
dialled, ``for`` the authority, ``as`` the accepted identities (accounts, in namespace ns).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.explain import explain
from nodenet.mesh.model import (
    ApplicationTunnel,
    IpFamilies,
    LoadBalancing,
    Locality,
    Mode,
    NetworkMode,
    Scope,
    Service,
    Status,
    Visibility,
    WeightedWaypoint,
    Workload,
)
from nodenet.mesh.outbound import PROXY_PORTS, decide, find_source
from nodenet.mesh.refused import Refused, UnknownSourceWorkload
from nodenet.mesh.route import Protocol, Route
from nodenet.mesh.rows import ROWS
from tests.unit.mesh.building import HBONE, TCP, at, ip, mesh, pod, ref, rng, service

PREFIX = "spiffe://cluster.local/ns/ns/sa/"
S = "ns/s.ns"
PASSTHROUGH = LoadBalancing(mode=Mode.PASSTHROUGH)
CLIENT = ip("10.0.0.1")
SOURCE = pod("source", "10.0.0.1", "fd00::1", uid="c1//Pod/ns/source")

Resource = Workload | Service
Case = tuple[list[Resource], str, str]


def told(route: Route) -> str:
    """A route in one line."""
    text = f"{route.row} {route.protocol.value} "
    if route.next_hop is not None:
        text += str(route.next_hop)
    elif route.resolve is not None:
        family = " (v6)" if route.resolve.prefer_ipv6 else ""
        text += f"{route.resolve.hostname}:{route.resolve.port}{family}"
    if route.protocol is not Protocol.TCP:
        text += f" for {route.authority or '(resolved)'} as {accounts(route.identities)}"
    if route.inner is not None:
        text += f" inside as {accounts(route.inner.identities)} from {route.inner.network!r}"
    return text


def accounts(identities: tuple[str, ...]) -> str:
    return "|".join(each.removeprefix(PREFIX) for each in identities) or "nobody"


def outcome(
    resources: list[Resource],
    destination: str,
    *,
    source: Workload = SOURCE,
    network: str = "",
    client: str = "10.0.0.1",
) -> str:
    """What comes of it, and that explain says the same."""
    state = mesh(source, *resources)
    explained = explain(state, source, ip(client), at(destination), network=network, rng=rng())
    try:
        route = decide(state, source, ip(client), at(destination), network=network, rng=rng())
    except Refused as refused:
        assert explained.result == "refused"
        assert explained.refused is not None
        assert str(explained.refused) == str(refused)
        assert explained.steps[-1].row == refused.row
        return f"{refused.row} {refused}"
    assert explained.route == route
    assert explained.result == ("plain" if route.protocol is Protocol.TCP else "mtls")
    assert explained.steps[-1].row == route.row
    return told(route)


def waypoint_pod(name: str = "wp", address: str = "10.0.0.9", **fields: Any) -> Workload:
    return pod(name, address, **fields)


def waypoint_service(name: str = "wp", vip: str = "10.96.0.9", **fields: Any) -> Service:
    return service(name, vip, ports=fields.pop("ports", {15008: 15008}), **fields)


WP = "ns/wp.ns"

UNKNOWN: dict[str, Case] = {
    "Z1-own-listener": (
        [], "127.0.0.1:15001", "Z1 attempted recursive call to ourselves",
    ),
    "Z1-inbound-listener-v6": ([], "[::1]:15006", "Z1 attempted recursive call to ourselves"),
    "Z1-hbone-listener": ([], "127.0.0.9:15008", "Z1 attempted recursive call to ourselves"),
    "Z1-another-port-of-loopback": ([], "127.0.0.1:15020", "Z5c TCP 127.0.0.1:15020"),
    "Z1-the-port-elsewhere": ([], "192.0.2.1:15008", "Z5c TCP 192.0.2.1:15008"),
    "Z5c-unknown-destination": ([], "192.0.2.1:80", "Z5c TCP 192.0.2.1:80"),
    "Z5c-unknown-destination-v6": ([], "[2001:db8::1]:80", "Z5c TCP [2001:db8::1]:80"),
    "Z5c-host-network": (
        [pod("a", "10.0.0.2", network_mode=NetworkMode.HOST_NETWORK)],
        "10.0.0.2:80",
        "Z5c TCP 10.0.0.2:80",
    ),
    "Z5c-workload-of-another-network": (
        [pod("a", "10.0.0.2", network="far")], "10.0.0.2:80", "Z5c TCP 10.0.0.2:80",
    ),
    "Z5c-service-of-another-namespace-only": (
        [
            service("s", "10.96.0.1", namespace="far", visibility=Visibility.NAMESPACE),
            pod("a", "10.0.0.2", services=["far/s.far"]),
        ],
        "10.96.0.1:80",
        "Z5c TCP 10.96.0.1:80",
    ),
}  # fmt: skip

DIRECT: dict[str, Case] = {
    "Z9-pod": (
        [pod("a", "10.0.0.2")], "10.0.0.2:80", "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:80 as a",
    ),
    "Z9-pod-of-the-same-node": (
        [pod("a", "10.0.0.2", node="n")],
        "10.0.0.2:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:80 as a",
    ),
    "Z9-pod-v6": (
        [pod("a", "10.0.0.2", "fd00::2")],
        "[fd00::2]:80",
        "Z9 HBONE [fd00::2]:15008 for [fd00::2]:80 as a",
    ),
    "Z9-itself": ([], "10.0.0.1:80", "Z9 HBONE 10.0.0.1:15008 for 10.0.0.1:80 as source"),
    "Z10-pod": ([pod("a", "10.0.0.2", protocol=TCP)], "10.0.0.2:80", "Z10 TCP 10.0.0.2:80"),
    "Z9-service": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services=[S])],
        "10.96.0.1:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:8080 as a",
    ),
    "Z10-service": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services=[S], protocol=TCP)],
        "10.96.0.1:80",
        "Z10 TCP 10.0.0.2:8080",
    ),
    "Z9-service-by-range": (
        [service("s", "10.97.0.0/16"), pod("a", "10.0.0.2", services=[S])],
        "10.97.1.2:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:8080 as a",
    ),
    "Z9-workload-waypoint-ignored-for-services": (
        [
            service("s", "10.96.0.1"),
            pod("a", "10.0.0.2", services=[S], waypoint=ref("/10.0.0.9")),
            waypoint_pod(),
        ],
        "10.96.0.1:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:8080 as a",
    ),
    "Z9-the-owned-address-of-several": (
        [pod("a", "10.0.0.2", "10.0.0.3")],
        "10.0.0.3:80",
        "Z9 HBONE 10.0.0.3:15008 for 10.0.0.3:80 as a",
    ),
}  # fmt: skip

UPSTREAM: dict[str, Case] = {
    "Z5a-passthrough": (
        [
            service("s", "10.96.0.1", load_balancing=PASSTHROUGH),
            pod("a", "10.0.0.2", services=[S]),
        ],
        "10.96.0.1:80",
        "Z5a TCP 10.96.0.1:80",
    ),
    "Z5a-passthrough-whatever-the-port": (
        [service("s", "10.96.0.1", load_balancing=PASSTHROUGH)],
        "10.96.0.1:9999",
        "Z5a TCP 10.96.0.1:9999",
    ),
    "Z5a-passthrough-range": (
        [service("s", "10.97.0.0/16", load_balancing=PASSTHROUGH)],
        "10.97.3.4:443",
        "Z5a TCP 10.97.3.4:443",
    ),
    "Z5b-no-endpoints": (
        [service("s", "10.96.0.1")], "10.96.0.1:80", "Z5b no healthy upstream: 10.96.0.1:80",
    ),
    "Z5b-no-endpoints-v6": (
        [service("s", "fd96::1")], "[fd96::1]:80", "Z5b no healthy upstream: [fd96::1]:80",
    ),
    "Z5b-unlisted-port": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services=[S])],
        "10.96.0.1:81",
        "Z5b no healthy upstream: 10.96.0.1:81",
    ),
    "Z5b-unhealthy": (
        [
            service("s", "10.96.0.1"),
            pod("a", "10.0.0.2", services=[S], status=Status.UNHEALTHY),
        ],
        "10.96.0.1:80",
        "Z5b no healthy upstream: 10.96.0.1:80",
    ),
    "Z5b-no-capacity": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services=[S], capacity=0)],
        "10.96.0.1:80",
        "Z5b no healthy upstream: 10.96.0.1:80",
    ),
    "Z5b-strict-and-nobody-near": (
        [
            service("s", "10.96.0.1", load_balancing=LoadBalancing((Scope.NODE,), Mode.STRICT)),
            pod("a", "10.0.0.2", services=[S], node="far"),
        ],
        "10.96.0.1:80",
        "Z5b no healthy upstream: 10.96.0.1:80",
    ),
    "Z5-a-service-before-a-workload": (  # trap T1: Z3 finds the workload, Z5 the service
        [
            service("s", "10.0.0.2"),
            pod("a", "10.0.0.2"),
            pod("b", "10.0.0.3", services=[S]),
        ],
        "10.0.0.2:80",
        "Z9 HBONE 10.0.0.3:15008 for 10.0.0.3:8080 as b",
    ),
    "Z5-and-nothing-there-passes": (  # T1: no service was addressed, so nothing is refused
        [service("s", "10.0.0.2"), pod("a", "10.0.0.2")],
        "10.0.0.2:81",
        "Z5c TCP 10.0.0.2:81",
    ),
}  # fmt: skip

TARGET_PORTS: dict[str, Case] = {
    "port-of-the-endpoint-first": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services={S: {80: 9090}})],
        "10.96.0.1:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:9090 as a",
    ),
    "port-of-the-service": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services={S: {81: 9090}})],
        "10.96.0.1:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:8080 as a",
    ),
    "named-port": (
        [
            service("s", "10.96.0.1", ports={80: 0}),
            pod("a", "10.0.0.2", services={S: {80: 9090}}),
            pod("b", "10.0.0.3", services=[S]),
        ],
        "10.96.0.1:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:9090 as a",
    ),
    "named-port-that-nobody-has": (
        [service("s", "10.96.0.1", ports={80: 0}), pod("a", "10.0.0.2", services=[S])],
        "10.96.0.1:80",
        "Z5b no healthy upstream: 10.96.0.1:80",
    ),
    "named-port-mapped-to-nothing": (
        [service("s", "10.96.0.1", ports={80: 0}), pod("a", "10.0.0.2", services={S: {80: 0}})],
        "10.96.0.1:80",
        "Z5b no healthy upstream: 10.96.0.1:80",
    ),
    "port-that-the-endpoint-maps-to-nothing": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services={S: {80: 0}})],
        "10.96.0.1:80",
        "Z5b no healthy upstream: 10.96.0.1:80",
    ),
    "a-tunnel-takes-any-port": (
        [
            service("s", "10.96.0.1", ports={80: 0}),
            pod("a", "10.0.0.2", services={S: {80: 0}},
                application_tunnel=ApplicationTunnel(port=15088)),
        ],
        "10.96.0.1:80",
        "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:80 as a",
    ),
    "a-tunnel-without-a-port-does-not": (
        [
            service("s", "10.96.0.1", ports={80: 0}),
            pod("a", "10.0.0.2", services={S: {80: 0}}, application_tunnel=ApplicationTunnel()),
        ],
        "10.96.0.1:80",
        "Z5b no healthy upstream: 10.96.0.1:80",
    ),
}  # fmt: skip


def families(*vips: str, of: IpFamilies) -> Service:
    return service("s", *vips, ip_families=of)


DUAL_POD = pod("a", "10.0.0.2", "fd00::2", services=[S])
DUAL_POD6 = pod("a", "fd00::2", "10.0.0.2", services=[S])
BOTH = ("10.96.0.1", "fd96::1")
V4, V6 = "10.96.0.1:80", "[fd96::1]:80"
TO4 = "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:8080 as a"
TO6 = "Z9 HBONE [fd00::2]:15008 for [fd00::2]:8080 as a"

ADDRESSES: dict[str, Case] = {
    "family-of-the-destination-v4": ([service("s", *BOTH), DUAL_POD6], V4, TO4),
    "family-of-the-destination-v6": ([service("s", *BOTH), DUAL_POD], V6, TO6),
    "only-the-other-family-v6": (
        [service("s", *BOTH), pod("a", "fd00::2", services=[S])], V4, TO6,
    ),
    "only-the-other-family-v4": (
        [service("s", *BOTH), pod("a", "10.0.0.2", services=[S])], V6, TO4,
    ),
    "dual": ([families(*BOTH, of=IpFamilies.DUAL), DUAL_POD], V6, TO6),
    "service-is-v4-only": ([families(*BOTH, of=IpFamilies.IPV4_ONLY), DUAL_POD6], V6, TO4),
    "service-is-v6-only": ([families(*BOTH, of=IpFamilies.IPV6_ONLY), DUAL_POD], V4, TO6),
    "service-is-v6-only-and-the-pod-is-not": (
        [families(*BOTH, of=IpFamilies.IPV6_ONLY), pod("a", "10.0.0.2", services=[S])],
        V4,
        "Z9 no valid routing destination for workload: "
        "Workload{a with uid c1//Pod/ns/a (HBONE)}",
    ),
    "hostname": (
        [
            service("s", "10.96.0.1"),
            pod("a", services=[S], hostname="a.example", protocol=TCP),
        ],
        "10.96.0.1:80",
        "Z10 TCP a.example:8080",
    ),
    "hostname-hbone": (
        [service("s", "10.96.0.1"), pod("a", services=[S], hostname="a.example")],
        "10.96.0.1:80",
        "Z9 HBONE a.example:15008 for (resolved) as a",
    ),
    "hostname-follows-the-destinations-family": (
        [service("s", *BOTH), pod("a", services=[S], hostname="a.example")],
        V6,
        "Z9 HBONE a.example:15008 (v6) for (resolved) as a",
    ),
    "an-address-before-a-hostname": (
        [service("s", "10.96.0.1"), pod("a", "10.0.0.2", services=[S], hostname="a.example")],
        "10.96.0.1:80",
        TO4,
    ),
}  # fmt: skip

NO_WP = "Z4 unknown waypoint: waypoint"
BY_WP = "HBONE 10.0.0.9:15008 for"

SERVICE_WAYPOINT: dict[str, Case] = {
    "Z4b-by-workload-address": (
        [
            service("s", "10.96.0.1", waypoint=ref("/10.0.0.9")),
            pod("a", "10.0.0.2", services=[S]),
            waypoint_pod(),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
    "Z4b-by-vip": (
        [
            service("s", "10.96.0.1", waypoint=ref("/10.96.0.9")),
            waypoint_service(),
            waypoint_pod(services=[WP]),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
    "Z4b-by-service-hostname": (
        [
            service("s", "10.96.0.1", waypoint=ref(WP)),
            waypoint_service(),
            waypoint_pod(services=[WP]),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
    "Z4b-by-workload-hostname": (
        [
            service("s", "10.96.0.1", waypoint=ref("ns/wp.example")),
            waypoint_pod(hostname="wp.example"),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
    "Z4b-workload-hostname-of-another-namespace": (
        [
            service("s", "10.96.0.1", waypoint=ref("far/wp.example")),
            waypoint_pod(hostname="wp.example"),
        ],
        "10.96.0.1:80",
        f"{NO_WP} wp.example not found",
    ),
    "Z4b-whatever-the-port": (
        [service("s", "10.96.0.1", waypoint=ref("/10.0.0.9")), waypoint_pod()],
        "10.96.0.1:9999",
        f"Z4b {BY_WP} 10.96.0.1:9999 as wp",
    ),
    "Z4b-port-of-the-reference": (
        [service("s", "10.96.0.1", waypoint=ref("/10.0.0.9", 15009)), waypoint_pod()],
        "10.96.0.1:80",
        "Z4b HBONE 10.0.0.9:15009 for 10.96.0.1:80 as wp",
    ),
    "Z4b-port-mapped-by-the-service": (
        [
            service("s", "10.96.0.1", waypoint=ref(WP, 15008)),
            waypoint_service(ports={15008: 15010}),
            waypoint_pod(services=[WP]),
        ],
        "10.96.0.1:80",
        "Z4b HBONE 10.0.0.9:15010 for 10.96.0.1:80 as wp",
    ),
    "Z4b-unlisted-port-with-a-tunnel": (
        [
            service("s", "10.96.0.1", waypoint=ref(WP)),
            waypoint_service(ports={}),
            waypoint_pod(services=[WP], application_tunnel=ApplicationTunnel(port=15088)),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
    "Z4-unlisted-port-without-a-tunnel": (
        [
            service("s", "10.96.0.1", waypoint=ref(WP)),
            waypoint_service(ports={}),
            waypoint_pod(services=[WP]),
        ],
        "10.96.0.1:80",
        f"{NO_WP} wp.ns not found",
    ),
    "Z4b-sans-of-service-and-workload": (
        [
            service("s", "10.96.0.1", waypoint=ref(WP), subject_alt_names=(f"{PREFIX}other",)),
            waypoint_service(subject_alt_names=(f"{PREFIX}x", f"{PREFIX}wp", "no-spiffe-id")),
            waypoint_pod(services=[WP]),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as x|wp",
    ),
    "Z4b-follows-the-destinations-family": (
        [
            service("s", *BOTH, waypoint=ref(WP)),
            waypoint_service(),
            pod("wp", "10.0.0.9", "fd00::9", services=[WP]),
        ],
        V6,
        "Z4b HBONE [fd00::9]:15008 for [fd96::1]:80 as wp",
    ),
    "Z4b-by-address-keeps-the-references-family": (
        [
            service("s", *BOTH, waypoint=ref("/10.96.0.9")),
            waypoint_service(),
            pod("wp", "fd00::9", "10.0.0.9", services=[WP]),
        ],
        V6,
        "Z4b HBONE 10.0.0.9:15008 for [fd96::1]:80 as wp",
    ),
    "Z4b-even-in-tcp": (
        [
            service("s", "10.96.0.1", waypoint=ref("/10.0.0.9")),
            waypoint_pod(protocol=TCP),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
    "Z4b-passthrough-service": (
        [
            service("s", "10.96.0.1", waypoint=ref("/10.0.0.9"), load_balancing=PASSTHROUGH),
            waypoint_pod(),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
    "Z4b-resolved-by-dns": (
        [
            service("s", "10.96.0.1", waypoint=ref("ns/wp.example")),
            pod("wp", hostname="wp.example"),
        ],
        "10.96.0.1:80",
        "Z4b HBONE wp.example:15008 for 10.96.0.1:80 as wp",
    ),
    "Z4b-without-an-address": (
        [
            service("s", "10.96.0.1", waypoint=ref(WP)),
            service("wp", "10.96.0.9", ports={15008: 15008}, ip_families=IpFamilies.IPV6_ONLY),
            waypoint_pod(services=[WP]),
        ],
        "10.96.0.1:80",
        "Z4b no valid routing destination for workload: "
        "Workload{wp with uid c1//Pod/ns/wp (HBONE)}",
    ),
    "Z4-unknown-address": (
        [service("s", "10.96.0.1", waypoint=ref("/10.0.0.9"))],
        "10.96.0.1:80",
        f"{NO_WP} /10.0.0.9 not found",
    ),
    "Z4-unknown-hostname": (
        [service("s", "10.96.0.1", waypoint=ref(WP))],
        "10.96.0.1:80",
        f"{NO_WP} wp.ns not found",
    ),
    "Z4-no-endpoints": (
        [service("s", "10.96.0.1", waypoint=ref(WP)), waypoint_service()],
        "10.96.0.1:80",
        f"{NO_WP} wp.ns not found",
    ),
    "Z4-by-vip-in-passthrough": (
        [
            service("s", "10.96.0.1", waypoint=ref("/10.96.0.9")),
            waypoint_service(load_balancing=PASSTHROUGH),
            waypoint_pod(services=[WP]),
        ],
        "10.96.0.1:80",
        f"{NO_WP} /10.96.0.9 not found",
    ),
    "Z4b-weighted": (
        [
            service(
                "s", "10.96.0.1", waypoint=ref("/10.0.0.9"),
                weighted_waypoints=(
                    WeightedWaypoint(ref("/10.0.0.8"), 1), WeightedWaypoint(ref("/10.0.0.9"), 0),
                ),
            ),
            waypoint_pod(), waypoint_pod("other", "10.0.0.8"),
        ],
        "10.96.0.1:80",
        "Z4b HBONE 10.0.0.8:15008 for 10.96.0.1:80 as other",
    ),
    "Z4b-all-weights-zero": (
        [
            service(
                "s", "10.96.0.1", waypoint=ref("/10.0.0.9"),
                weighted_waypoints=(WeightedWaypoint(ref("/10.0.0.8"), 0),),
            ),
            waypoint_pod(), waypoint_pod("other", "10.0.0.8"),
        ],
        "10.96.0.1:80",
        f"Z4b {BY_WP} 10.96.0.1:80 as wp",
    ),
}  # fmt: skip

TO_POD: list[Resource] = [pod("a", "10.0.0.2", waypoint=ref("/10.0.0.9")), waypoint_pod()]

WORKLOAD_WAYPOINT: dict[str, Case] = {
    "Z8-by-address": (TO_POD, "10.0.0.2:80", f"Z8 {BY_WP} 10.0.0.2:80 as wp"),
    "Z8-by-service-hostname": (
        [
            pod("a", "10.0.0.2", waypoint=ref(WP)),
            waypoint_service(subject_alt_names=(f"{PREFIX}x",)),
            waypoint_pod(services=[WP]),
        ],
        "10.0.0.2:80",
        f"Z8 {BY_WP} 10.0.0.2:80 as x|wp",
    ),
    "Z8-by-vip": (
        [
            pod("a", "10.0.0.2", waypoint=ref("/10.96.0.9")),
            waypoint_service(),
            waypoint_pod(services=[WP]),
        ],
        "10.0.0.2:80",
        f"Z8 {BY_WP} 10.0.0.2:80 as wp",
    ),
    "Z8-of-a-tcp-pod": (
        [pod("a", "10.0.0.2", protocol=TCP, waypoint=ref("/10.0.0.9")), waypoint_pod()],
        "10.0.0.2:80",
        f"Z8 {BY_WP} 10.0.0.2:80 as wp",
    ),
    "Z8-unknown": (
        [pod("a", "10.0.0.2", waypoint=ref(WP))],
        "10.0.0.2:80",
        "Z8 unknown waypoint: waypoint wp.ns not found",
    ),
    "Z8-no-network-check": (
        [
            pod("a", "10.0.0.2", waypoint=ref(WP)),
            waypoint_service(),
            waypoint_pod(services=[WP], network="far"),
        ],
        "10.0.0.2:80",
        f"Z8 {BY_WP} 10.0.0.2:80 as wp",
    ),
}  # fmt: skip

ALL = {
    **UNKNOWN, **DIRECT, **UPSTREAM, **TARGET_PORTS, **ADDRESSES, **SERVICE_WAYPOINT,
    **WORKLOAD_WAYPOINT,
}  # fmt: skip


@pytest.mark.parametrize(("resources", "destination", "expected"), ALL.values(), ids=ALL)
def test_decision(resources: list[Resource], destination: str, expected: str) -> None:
    assert outcome(resources, destination) == expected


def test_the_sources_own_waypoint_is_never_asked() -> None:
    source = pod("source", "10.0.0.1", waypoint=ref("/10.0.0.9"))
    found = outcome([pod("a", "10.0.0.2"), waypoint_pod()], "10.0.0.2:80", source=source)
    assert found == "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:80 as a"


DIRECT_TO_A = "Z9 HBONE 10.0.0.2:15008 for 10.0.0.2:80 as a"
BY_WAYPOINT = f"Z8 {BY_WP} 10.0.0.2:80 as wp"


@pytest.mark.parametrize(
    ("reference", "client", "account", "expected"),
    [
        pytest.param("/10.0.0.9", "10.0.0.9", "wp", DIRECT_TO_A, id="Z7-by-address"),
        pytest.param("/10.96.0.9", "10.0.0.9", "wp", DIRECT_TO_A, id="Z7-by-vip"),
        pytest.param(WP, "10.0.0.9", "wp", DIRECT_TO_A, id="Z7-by-hostname"),
        pytest.param("ns/wp.example", "10.0.0.9", "wp", DIRECT_TO_A, id="Z7-by-workload-hostname"),
        pytest.param(WP, "10.0.0.8", "wp", BY_WAYPOINT, id="Z7-other-address"),
        pytest.param(WP, "10.0.0.9", "other", BY_WAYPOINT, id="Z7-other-identity"),
    ],
)
def test_from_the_waypoint(reference: str, client: str, account: str, expected: str) -> None:
    waypoint = waypoint_pod(services=[WP], hostname="wp.example")
    # another pod may share the waypoint's address (a host-network one), but not its identity
    other = waypoint_pod("other", network_mode=NetworkMode.HOST_NETWORK)
    resources: list[Resource] = [
        pod("a", "10.0.0.2", waypoint=ref(reference)),
        waypoint_service(),
        waypoint,
    ]
    source = waypoint if account == "wp" else other
    assert outcome(resources, "10.0.0.2:80", source=source, client=client) == expected


def far(name: str, *addresses: str, **fields: Any) -> Workload:
    return pod(name, *addresses, network="far", **fields)


GATEWAY = ref("far/192.0.2.1", 15008)
GATEWAY_POD = far("gw", "192.0.2.1")
SANS = (f"{PREFIX}far-s",)
INSIDE = "inside as far-s from 'net'"
IN_NET = "Z6 DOUBLEHBONE 192.0.2.1:15008 for s.ns:80 as"

DOUBLE: dict[str, Case] = {
    "Z6-gateway-by-address": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS),
            far("a", services=[S], network_gateway=GATEWAY),
            GATEWAY_POD,
        ],
        "10.96.0.1:80",
        f"{IN_NET} gw {INSIDE}",
    ),
    "Z6-with-an-address-too": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS),
            far("a", "10.0.0.2", services=[S], network_gateway=GATEWAY),
            GATEWAY_POD,
        ],
        "10.96.0.1:80",
        f"{IN_NET} gw {INSIDE}",
    ),
    "Z6-gateway-by-service-hostname": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS),
            far("a", services=[S], network_gateway=ref("ns/gw.ns", 15009)),
            service("gw", ports={15009: 15008}, subject_alt_names=(f"{PREFIX}gw-svc",)),
            far("gw", "192.0.2.1", services=["ns/gw.ns"]),
        ],
        "10.96.0.1:80",
        f"{IN_NET} gw-svc|gw {INSIDE}",
    ),
    "Z6-gateway-by-workload-hostname": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS),
            far("a", services=[S], network_gateway=ref("ns/gw.example")),
            far("gw", "192.0.2.1", hostname="gw.example"),
        ],
        "10.96.0.1:80",
        f"{IN_NET} gw {INSIDE}",
    ),
    "Z6-gateways-must-list-the-port": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS),
            far("a", services=[S], network_gateway=ref("ns/gw.ns")),
            service("gw", ports={}),
            far("gw", "192.0.2.1", services=["ns/gw.ns"],
                application_tunnel=ApplicationTunnel(port=15088)),
        ],
        "10.96.0.1:80",
        "Z6 unknown network gateway: network gateway gw.ns not found",
    ),
    "Z6-unknown-gateway": (
        [service("s", "net/10.96.0.1"), far("a", services=[S], network_gateway=GATEWAY)],
        "10.96.0.1:80",
        "Z6 unknown network gateway: network gateway far/192.0.2.1 not found",
    ),
    "Z6-no-gateway": (
        [service("s", "net/10.96.0.1"), far("a", "10.0.0.2", services=[S])],
        "10.96.0.1:80",
        "Z6 no valid routing destination for workload: "
        "Workload{a with uid c1//Pod/ns/a (HBONE)}",
    ),
    "Z6-no-names-inside": (  # trap T8: such a tunnel fails, whoever answers
        [
            service("s", "net/10.96.0.1"),
            far("a", services=[S], network_gateway=GATEWAY),
            GATEWAY_POD,
        ],
        "10.96.0.1:80",
        f"{IN_NET} gw inside as nobody from 'net'",
    ),
    "Z6-failover-to-remote": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS, load_balancing=LoadBalancing(
                (Scope.NETWORK, Scope.REGION), Mode.FAILOVER)),
            pod("here", "10.0.0.3", services=[S], network="net", status=Status.UNHEALTHY),
            far("a", services=[S], network_gateway=GATEWAY),
            GATEWAY_POD,
        ],
        "10.96.0.1:80",
        f"{IN_NET} gw {INSIDE}",
    ),
    "Z9-failover-prefers-this-network": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS, load_balancing=LoadBalancing(
                (Scope.NETWORK, Scope.REGION), Mode.FAILOVER)),
            pod("here", "10.0.0.3", services=[S], network="net", locality=Locality("other")),
            far("a", services=[S], network_gateway=GATEWAY),
            GATEWAY_POD,
        ],
        "10.96.0.1:80",
        "Z9 HBONE 10.0.0.3:15008 for 10.0.0.3:8080 as far-s|here",
    ),
    "Z4a-remote-waypoint": (
        [
            service("s", "net/10.96.0.1", waypoint=ref(WP), subject_alt_names=SANS),
            waypoint_service(subject_alt_names=(f"{PREFIX}wp-svc",)),
            far("wp", services=[WP], network_gateway=GATEWAY),
            GATEWAY_POD,
        ],
        "10.96.0.1:80",
        "Z4a DOUBLEHBONE 192.0.2.1:15008 for s.ns:80 as gw inside as wp-svc from 'net'",
    ),
    "Z4a-remote-waypoint-without-a-gateway": (
        [
            service("s", "net/10.96.0.1", waypoint=ref(WP)),
            waypoint_service(),
            far("wp", "10.0.0.9", services=[WP]),
        ],
        "10.96.0.1:80",
        "Z4a no valid routing destination for workload: "
        "Workload{wp with uid c1//Pod/ns/wp (HBONE)}",
    ),
    "Z6-gateway-by-dns": (
        [
            service("s", "net/10.96.0.1", subject_alt_names=SANS),
            far("a", services=[S], network_gateway=ref("ns/gw.example")),
            far("gw", hostname="gw.example"),
        ],
        "10.96.0.1:80",
        f"Z6 DOUBLEHBONE gw.example:15008 for s.ns:80 as gw {INSIDE}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("resources", "destination", "expected"), DOUBLE.values(), ids=DOUBLE)
def test_across_networks(resources: list[Resource], destination: str, expected: str) -> None:
    source = pod("source", "10.0.0.1", network="net")
    assert outcome(resources, destination, source=source, network="net") == expected


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        # Z3 looks in the cluster's network and Z5 in the workload's own (trap T1)
        pytest.param("mine", "Z5b no healthy upstream: 10.96.0.1:80", id="Z3-finds-the-service"),
        pytest.param("other", "Z5c TCP 10.96.0.1:80", id="Z3-finds-nothing"),
    ],
)
def test_two_networks_are_looked_in(network: str, expected: str) -> None:
    source = pod("source", "10.0.0.1", network="theirs")
    resources: list[Resource] = [
        service("s", "mine/10.96.0.1"),
        pod("a", "10.0.0.2", network="theirs", services=[S]),
    ]
    assert outcome(resources, "10.96.0.1:80", source=source, network=network) == expected


def test_passthrough_known_to_the_cluster_only() -> None:
    """The service that Z3 found wants passthrough: what Z5 does not find is not refused."""
    source = pod("source", "10.0.0.1", network="theirs")
    resources: list[Resource] = [service("s", "mine/10.96.0.1", load_balancing=PASSTHROUGH)]
    found = outcome(resources, "10.96.0.1:80", source=source, network="mine")
    assert found == "Z5c TCP 10.96.0.1:80"


def test_no_service_for_an_endpoint_far_away() -> None:
    """Found in Z5 only, in the source's own network: nobody knows the name to ask for."""
    source = pod("source", "10.0.0.1", network="theirs")
    resources: list[Resource] = [
        service("s", "theirs/10.96.0.1"),
        far("a", "10.0.0.2", services=[S], network_gateway=GATEWAY),
    ]
    found = outcome(resources, "10.96.0.1:80", source=source, network="mine")
    assert found == "Z6 no service for target address: 10.96.0.1:80"


def test_socks_port_is_the_proxys_own_when_it_is_on() -> None:
    state = mesh(SOURCE)
    ports = PROXY_PORTS | {15080}
    with pytest.raises(Refused, match="recursive"):
        decide(
            state, SOURCE, CLIENT, at("127.0.0.1:15080"), network="", rng=rng(), proxy_ports=ports
        )


def test_labels_of_a_route() -> None:
    s, a = service("s", "10.96.0.1"), pod("a", "10.0.0.2", services=[S])
    through = service("t", "10.96.0.2", waypoint=ref("/10.0.0.9"))
    wp = waypoint_pod()
    state = mesh(SOURCE, s, a, through, wp, service("p", "10.96.0.3", load_balancing=PASSTHROUGH))

    def labels(destination: str) -> tuple[Service | None, Workload | None]:
        route = decide(state, SOURCE, CLIENT, at(destination), network="", rng=rng())
        return route.service, route.workload

    assert labels("10.96.0.1:80") == (s, a)
    assert labels("10.0.0.2:80") == (None, a)
    assert labels("10.96.0.2:80") == (through, wp)
    assert labels("10.96.0.3:80") == (None, None)
    assert labels("192.0.2.1:80") == (None, None)


def test_both_endpoints_are_reached() -> None:
    state = mesh(
        SOURCE,
        service("s", "10.96.0.1"),
        *(pod(f"a{i}", f"10.0.1.{i}", services=[S]) for i in range(3)),
    )
    random = rng()
    hops = {
        str(decide(state, SOURCE, CLIENT, at("10.96.0.1:80"), network="", rng=random).next_hop)
        for _ in range(50)
    }
    assert hops == {f"10.0.1.{i}:15008" for i in range(3)}


def test_find_source() -> None:
    state = mesh(SOURCE)
    found = find_source(state, namespace="ns", name="source", service_account="source")
    assert found == SOURCE
    with pytest.raises(UnknownSourceWorkload) as caught:
        find_source(state, namespace="shop", name="cart-0", service_account="cart")
    assert str(caught.value) == (
        "failed to fetch information about local workload: cart.shop (cart-0)"
    )


def test_every_row_has_a_case() -> None:
    cases = {*ALL, *DOUBLE}
    decided = {expected.split(" ")[0].rstrip("abc") for _, _, expected in (
        *ALL.values(), *DOUBLE.values())}  # fmt: skip
    # Z0, Z2, Z3 and Z7 never decide a route; Z2 and Z7 have tests of their own above
    assert decided == {row.id for row in ROWS} - {"Z0", "Z2", "Z3", "Z7"}
    assert len(cases) == len(ALL) + len(DOUBLE)


def addresses(resources: list[Resource]) -> Iterator[str]:
    for each in resources:
        yield from (
            map(str, each.ips) if isinstance(each, Workload) else (str(v.ip) for v in each.vips)
        )


PODS = st.builds(
    lambda number, **fields: pod(f"p{number}", f"10.0.0.{number}", **fields),
    st.integers(1, 5),
    services=st.sampled_from(([], [S], ["far/s.far"], [S, WP])),
    protocol=st.sampled_from((TCP, HBONE)),
    network=st.sampled_from(("", "far")),
    status=st.sampled_from(Status),
    capacity=st.integers(0, 2),
    waypoint=st.sampled_from((None, ref("/10.0.0.3"), ref(WP))),
    network_gateway=st.sampled_from((None, GATEWAY, ref("/10.0.0.4"))),
    hostname=st.sampled_from(("", "a.example")),
)
SERVICES = st.builds(
    service,
    st.sampled_from(("s", "wp")),
    st.sampled_from(("10.96.0.1", "10.96.0.2", "10.0.0.5", "10.0.0.0/30")),
    namespace=st.sampled_from(("ns", "far")),
    ports=st.sampled_from(({80: 8080}, {80: 0}, {15008: 15008})),
    visibility=st.sampled_from(Visibility),
    waypoint=st.sampled_from((None, ref("/10.0.0.3"), ref(WP))),
    load_balancing=st.sampled_from((None, PASSTHROUGH, LoadBalancing((Scope.NODE,), Mode.STRICT))),
)


@given(
    st.lists(PODS | SERVICES, max_size=8),
    st.sampled_from(("10.96.0.1:80", "10.0.0.2:80", "10.0.0.5:80", "10.96.0.2:15008")),
    st.integers(0, 1000),
)
def test_any_mesh(resources: list[Resource], destination: str, seed: int) -> None:
    """A route or a refusal, never another error; and only to what the source may see."""
    state = mesh(SOURCE, *resources)
    try:
        route = decide(state, SOURCE, CLIENT, at(destination), network="", rng=rng(seed))
    except Refused as refused:
        assert refused.row.startswith("Z")
        return
    assert (route.next_hop is None) is (route.resolve is not None)
    assert (route.inner is not None) is (route.protocol is Protocol.DOUBLE_HBONE)
    assert bool(route.identities) is (route.protocol is not Protocol.TCP)
    if route.service is not None:
        assert route.service.visible_to(SOURCE.namespace)
    if route.row in ("Z9", "Z10") and route.service is not None:
        assert route.workload is not None
        endpoints = state.endpoints(route.service)
        assert endpoints[route.workload.uid].capacity > 0
    if route.protocol is Protocol.TCP and route.workload is None:
        assert str(route.next_hop) == destination
