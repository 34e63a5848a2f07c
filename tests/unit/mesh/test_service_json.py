"""Services as JSON: what is left out, what is put in, and that nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.model import (
    CidrAddress,
    HealthPolicy,
    IpFamilies,
    LoadBalancing,
    Mode,
    Scope,
    Service,
    Status,
    Visibility,
    WeightedWaypoint,
)
from nodenet.mesh.policy import InvalidPart
from nodenet.mesh.service_json import (
    service_from_object,
    service_to_object,
    static_service_to_object,
)
from nodenet.mesh.services import endpoint_of
from tests.unit.mesh.building import packed, pod, ref, service

LEAST = {"name": "s", "namespace": "ns", "hostname": "s.ns"}
FULL: dict[str, Any] = {
    "name": "s",
    "namespace": "ns",
    "hostname": "s.ns",
    "vips": ["/10.96.0.1", "net/fd96::1"],
    "cidrVips": [{"network": "net", "cidr": "10.97.0.0/16"}],
    "ports": {"80": 8080, "443": 0},
    "endpoints": {
        "c1//Pod/ns/a": {
            "workloadUid": "c1//Pod/ns/a", "port": {"80": 9090}, "status": "Unhealthy",
        },
    },
    "subjectAltNames": ["spiffe://td/ns/ns/sa/s"],
    "waypoint": {"destination": "ns/wp.ns", "hboneMtlsPort": 15008},
    "weightedWaypoints": [
        {"destination": {"destination": "ns/w1", "hboneMtlsPort": 15008}, "weight": 9},
        {"destination": {"destination": "/10.0.0.9", "hboneMtlsPort": 15009}, "weight": 0},
    ],
    "loadBalancer": {
        "routingPreferences": ["Network", "Region", "Zone", "Subzone", "Node", "Cluster"],
        "mode": "Failover",
        "healthPolicy": "AllowAll",
    },
    "ipFamilies": "IPv6",
    "canonical": True,
    "visibility": "Namespace",
}  # fmt: skip


def test_least() -> None:
    found = service_from_object(LEAST)
    assert found.service == Service(name="s", namespace="ns", hostname="s.ns")
    assert found.endpoints == {}
    assert service_to_object(found.service, ()) == {
        **LEAST,
        "vips": [],
        "ports": {},
        "endpoints": {},
        "subjectAltNames": [],
        "canonical": False,
        "visibility": "Public",
    }


def test_everything() -> None:
    found = service_from_object(FULL)
    assert found.service.cidr_vips == (CidrAddress("net", packed("10.97.0.0"), 16),)
    assert found.service.ip_families is IpFamilies.IPV6_ONLY
    assert found.endpoints == {"c1//Pod/ns/a": ((80, 9090),)}
    endpoint = endpoint_of(pod("a", status=Status.UNHEALTHY), ((80, 9090),))
    dumped = service_to_object(found.service, [endpoint])
    assert dumped == FULL
    assert list(dumped) == list(FULL)
    static = static_service_to_object(found.service)
    assert static == {key: value for key, value in FULL.items() if key != "endpoints"}


@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        ({"hostname": None}, ("hostname",), "is missing"),
        ({"hostname": "a/b"}, ("hostname",), "has a slash"),
        ({"vip": []}, ("vip",), "did you mean vips"),
        ({"vips": ["10.96.0.1"]}, ("vips", 0), "is written /10.0.0.1"),
        ({"vips": ["net/s.ns"]}, ("vips", 0), "'s.ns' is not an IP address"),
        ({"cidrVips": [{"cidr": "10.0.0.0/33"}]}, ("cidrVips", 0, "cidr"), "is not a range"),
        ({"cidrVips": [{"network": "n"}]}, ("cidrVips", 0, "cidr"), "is missing"),
        ({"ports": {"80": 65536}}, ("ports", "80"), "65536 is not within"),
        ({"ports": [80]}, ("ports",), "where an object is needed"),
        ({"weightedWaypoints": [{"weight": 1}]}, ("weightedWaypoints", 0, "destination"),
         "is missing"),
        ({"loadBalancer": {"mode": "Random"}}, ("loadBalancer", "mode"),
         "none of Standard, Strict, Failover, Passthrough"),
        ({"loadBalancer": {"routingPreferences": ["Planet"]}},
         ("loadBalancer", "routingPreferences", 0), "none of Region"),
        ({"ipFamilies": "v4"}, ("ipFamilies",), "none of Dual, IPv4, IPv6"),
        ({"visibility": "Private"}, ("visibility",), "none of Public, Namespace"),
        ({"canonical": 1}, ("canonical",), "true or false"),
        ({"endpoints": {"a": {"workloadUid": "b"}}}, ("endpoints", "a", "workloadUid"),
         "the endpoint of 'a' is another one"),
        ({"endpoints": {"a": {"address": "b"}}}, ("endpoints", "a", "address"), "unknown key"),
    ],
)  # fmt: skip
def test_refused(change: dict[str, Any], path: tuple[str | int, ...], reason: str) -> None:
    with pytest.raises(InvalidPart) as caught:
        service_from_object({**LEAST, **change}, ("services", 0))
    assert caught.value.path == ("services", 0, *path)
    assert reason in caught.value.reason


def test_host_bits_of_a_range_mean_nothing() -> None:
    found = service_from_object({**LEAST, "cidrVips": [{"cidr": "10.97.1.2/16"}]})
    assert found.service.cidr_vips == (CidrAddress("", packed("10.97.0.0"), 16),)


NAMES = st.sampled_from(("a", "b-c", "x.y"))
SERVICES = st.builds(
    service,
    NAMES,
    st.sampled_from(("10.96.0.1", "net/fd96::1", "10.97.0.0/16", "fd97::/64")),
    namespace=NAMES,
    ports=st.dictionaries(st.integers(1, 65535), st.integers(0, 65535), max_size=3),
    subject_alt_names=st.lists(NAMES, max_size=2).map(tuple),
    waypoint=st.sampled_from((None, ref("ns/w"), ref("net/10.0.0.1", 1))),
    weighted_waypoints=st.lists(
        st.builds(WeightedWaypoint, st.just(ref("ns/w")), st.integers(0, 2**32 - 1)), max_size=2
    ).map(tuple),
    load_balancing=st.none()
    | st.builds(
        LoadBalancing,
        st.lists(st.sampled_from(Scope), unique=True).map(tuple),
        st.sampled_from(Mode),
        st.sampled_from(HealthPolicy),
    ),
    ip_families=st.sampled_from(IpFamilies),
    canonical=st.booleans(),
    visibility=st.sampled_from(Visibility),
)


@given(SERVICES)
def test_round_trip(found: Service) -> None:
    assert service_from_object(static_service_to_object(found)).service == found
