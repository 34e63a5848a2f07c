"""References to gateways: an address or a hostname, told apart by what follows the slash."""

from __future__ import annotations

import pytest

from nodenet.mesh.gateway_json import gateway, gateway_to_object, network_address
from nodenet.mesh.model import GatewayAddress, NamespacedHostname, NetworkAddress
from nodenet.mesh.policy import InvalidPart
from tests.unit.mesh.building import packed


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("/10.0.0.1", NetworkAddress("", packed("10.0.0.1"))),
        ("net/10.0.0.1", NetworkAddress("net", packed("10.0.0.1"))),
        ("net/fd00::1", NetworkAddress("net", packed("fd00::1"))),
        ("ns/w.example", NamespacedHostname("ns", "w.example")),
        ("10.0.0.1/w.example", NamespacedHostname("10.0.0.1", "w.example")),
    ],
)
def test_read_and_written(written: str, expected: NetworkAddress | NamespacedHostname) -> None:
    value = {"destination": written, "hboneMtlsPort": 15009}
    assert gateway(value, ()) == GatewayAddress(expected, 15009)
    assert gateway_to_object(GatewayAddress(expected, 15009)) == value


def test_the_port_has_a_default() -> None:
    assert gateway({"destination": "ns/w"}, ()).hbone_mtls_port == 15008


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({}, ("destination",), "is missing"),
        ({"destination": "10.0.0.1"}, ("destination",), "neither network/IP nor"),
        ({"destination": "a/b/c"}, ("destination",), "neither network/IP nor"),
        ({"destination": "ns/"}, ("destination",), "neither network/IP nor"),
        ({"destination": "/w.example"}, ("destination",), "no namespace before the hostname"),
        ({"destination": "ns/w", "hboneMtlsPort": 0}, ("hboneMtlsPort",), "0 is not within"),
        ({"destination": "ns/w", "port": 1}, ("port",), "unknown key"),
        ("ns/w", (), "where an object is needed"),
    ],
)
def test_refused(value: object, path: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InvalidPart) as caught:
        gateway(value, ("waypoint",))
    assert caught.value.path == ("waypoint", *path)
    assert reason in caught.value.reason


def test_addresses_alone() -> None:
    assert network_address("/10.0.0.1", ()) == NetworkAddress("", packed("10.0.0.1"))
    with pytest.raises(InvalidPart, match="'w.example' is not an IP address"):
        network_address("ns/w.example", ())
