"""Workloads as JSON: what is left out, what is put in, and that nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.endpoint import unmapped
from nodenet.mesh.model import (
    ApplicationTunnel,
    Locality,
    NetworkMode,
    Status,
    TunnelKind,
    TunnelProtocol,
    Workload,
)
from nodenet.mesh.policy import InvalidPart
from nodenet.mesh.workload_json import (
    static_workload_to_object,
    with_ports,
    workload_from_object,
    workload_to_object,
)
from tests.unit.mesh.building import packed, pod, ref

LEAST = {"name": "a", "namespace": "ns"}
FULL: dict[str, Any] = {
    "workloadIps": ["10.0.0.1", "fd00::1"],
    "waypoint": {"destination": "ns/wp.ns", "hboneMtlsPort": 15008},
    "networkGateway": {"destination": "far/192.0.2.1", "hboneMtlsPort": 15009},
    "protocol": "HBONE",
    "networkMode": "HostNetwork",
    "uid": "c1//Pod/ns/a",
    "name": "a",
    "namespace": "ns",
    "trustDomain": "td",
    "serviceAccount": "sa",
    "network": "net",
    "workloadName": "a-deployment",
    "workloadType": "cronjob",
    "canonicalName": "a-app",
    "canonicalRevision": "v1",
    "hostname": "a.example",
    "node": "n1",
    "nativeTunnel": True,
    "applicationTunnel": {"protocol": "PROXY", "port": 15088},
    "authorizationPolicies": ["ns/p"],
    "status": "Unhealthy",
    "clusterId": "c1",
    "locality": {"region": "r", "zone": "z", "subzone": "s"},
    "services": {"ns/s.ns": {"80": 8080}, "ns/t.ns": {}},
    "capacity": 3,
}


def test_least() -> None:
    found = workload_from_object(LEAST)
    assert found == Workload(uid="Kubernetes//Pod/ns/a", name="a", namespace="ns")
    assert (found.protocol, found.network_mode, found.status, found.capacity) == (
        TunnelProtocol.TCP, NetworkMode.STANDARD, Status.HEALTHY, 1,
    )  # fmt: skip
    assert workload_to_object(found) == {
        "workloadIps": [],
        "protocol": "TCP",
        "networkMode": "Standard",
        "uid": "Kubernetes//Pod/ns/a",
        "name": "a",
        "namespace": "ns",
        "trustDomain": "cluster.local",
        "serviceAccount": "default",
        "workloadType": "deployment",
        "status": "Healthy",
        "clusterId": "Kubernetes",
        "capacity": 1,
    }


def test_everything() -> None:
    found = workload_from_object(FULL)
    assert found.addresses == (packed("10.0.0.1"), packed("fd00::1"))
    assert found.application_tunnel == ApplicationTunnel(TunnelKind.PROXY, 15088)
    assert found.locality == Locality("r", "z", "s")
    assert static_workload_to_object(found) == FULL
    dumped = workload_to_object(found)
    assert dumped == {**FULL, "services": ["ns/s.ns", "ns/t.ns"]}
    assert list(dumped) == list(FULL)


def test_null_is_absent() -> None:
    assert workload_from_object({**LEAST, **dict.fromkeys(set(FULL) - set(LEAST))}) == (
        workload_from_object(LEAST)
    )


def test_empty_texts_are_defaults_as_on_the_wire() -> None:
    empty = dict.fromkeys(("trustDomain", "serviceAccount", "clusterId", "workloadType"), "")
    assert workload_from_object({**LEAST, **empty}) == workload_from_object(LEAST)


@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        ({"name": None}, ("name",), "is missing"),
        ({"name": ""}, ("name",), "is empty"),
        ({"namespace": "a/b"}, ("namespace",), "has a slash"),
        ({"workloadIPs": []}, ("workloadIPs",), "did you mean workloadIps"),
        ({"workloadIps": ["10.0.0"]}, ("workloadIps", 0), "is not an IP address"),
        ({"protocol": "hbone"}, ("protocol",), "'hbone' is none of TCP, HBONE"),
        ({"protocol": "LEGACY_ISTIO_MTLS"}, ("protocol",), "none of TCP, HBONE"),
        ({"networkMode": "Host"}, ("networkMode",), "none of Standard, HostNetwork"),
        ({"status": 1}, ("status",), "none of Healthy, Unhealthy"),
        ({"applicationTunnel": {"protocol": "HTTP"}}, ("applicationTunnel", "protocol"), "NONE"),
        ({"applicationTunnel": {"port": 70000}}, ("applicationTunnel", "port"), "not within"),
        ({"locality": {"area": "r"}}, ("locality", "area"), "unknown key"),
        ({"services": {"s.ns": {}}}, ("services", "s.ns"), "is not namespace/hostname"),
        ({"services": ["ns/s/x"]}, ("services", 0), "is not namespace/hostname"),
        ({"services": {"ns/s": {"x": 1}}}, ("services", "ns/s", "x"), "is not a port"),
        ({"services": 3}, ("services",), "where an object is needed"),
        ({"authorizationPolicies": ["p"]}, ("authorizationPolicies", 0), "not namespace/name"),
        ({"capacity": -1}, ("capacity",), "-1 is not within"),
        ({"capacity": 2**32}, ("capacity",), "is not within"),
        ({"nativeTunnel": "yes"}, ("nativeTunnel",), "true or false"),
    ],
)
def test_refused(change: dict[str, Any], path: tuple[str | int, ...], reason: str) -> None:
    with pytest.raises(InvalidPart) as caught:
        workload_from_object({**LEAST, **change}, ("workloads", 0))
    assert caught.value.path == ("workloads", 0, *path)
    assert reason in caught.value.reason


def test_a_tunnels_port_of_zero_is_none() -> None:
    found = workload_from_object({**LEAST, "applicationTunnel": {"port": 0}})
    assert found.application_tunnel == ApplicationTunnel(TunnelKind.NONE, None)
    assert workload_to_object(found)["applicationTunnel"] == {"protocol": "NONE"}


def test_ports_from_elsewhere() -> None:
    found = pod("a", services={"ns/s": {}, "ns/t": {80: 1}, "ns/u": {}})
    assert with_ports(found, {"ns/s": ((80, 8080),), "ns/t": ((80, 2),)}) == pod(
        "a", services={"ns/s": {80: 8080}, "ns/t": {80: 1}, "ns/u": {}}
    )


TEXTS = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=5)
PORTS = st.dictionaries(st.integers(1, 65535), st.integers(0, 65535), max_size=2)
WORKLOADS = st.builds(
    pod,
    TEXTS,
    # a v4-mapped address is IPv4 as soon as it is read
    st.ip_addresses().map(lambda found: str(unmapped(found))),
    services=st.dictionaries(st.builds("ns/{}".format, TEXTS), PORTS, max_size=2),
    trust_domain=TEXTS,
    network=st.just("") | TEXTS,
    locality=st.builds(Locality, st.just("") | TEXTS, st.just("") | TEXTS),
    status=st.sampled_from(Status),
    network_mode=st.sampled_from(NetworkMode),
    protocol=st.sampled_from(TunnelProtocol),
    waypoint=st.sampled_from((None, ref("ns/w"), ref("net/10.0.0.1", 1))),
    application_tunnel=st.none()
    | st.builds(ApplicationTunnel, st.sampled_from(TunnelKind), st.none() | st.integers(1, 65535)),
    native_tunnel=st.booleans(),
    hostname=st.just("") | TEXTS,
    capacity=st.integers(0, 2**32 - 1),
)


@given(WORKLOADS)
def test_round_trip(workload: Workload) -> None:
    assert workload_from_object(static_workload_to_object(workload)) == workload
