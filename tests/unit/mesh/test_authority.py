"""What a CONNECT may ask for, and what means nothing."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.authority import Authority, HostPort, parse_authority
from nodenet.mesh.model import Endpoint


def at(ip: str, port: int) -> Endpoint:
    return Endpoint(ipaddress.ip_address(ip), port)


@pytest.mark.parametrize(
    ("text", "authority"),
    [
        ("10.0.0.1:80", at("10.0.0.1", 80)),
        ("[fd00::1]:65535", at("fd00::1", 65535)),
        ("[::ffff:10.0.0.1]:80", at("10.0.0.1", 80)),
        ("db.shop.svc.cluster.local:5432", HostPort("db.shop.svc.cluster.local", 5432)),
        ("db:1", HostPort("db", 1)),
        ("a_b-c.d:80", HostPort("a_b-c.d", 80)),
        ("db.shop.:80", HostPort("db.shop.", 80)),
        ("10.0.0.1.nip.io:80", HostPort("10.0.0.1.nip.io", 80)),
    ],
)
def test_read(text: str, authority: Authority) -> None:
    assert parse_authority(text) == authority


@pytest.mark.parametrize("text", ["10.0.0.1:80", "[fd00::1]:80", "db.shop.svc:80"])
def test_written_as_read(text: str) -> None:
    assert str(parse_authority(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":80",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:+80",
        "10.0.0.1: 80",
        "10.0.0.1:８０",
        "10.0.0.1:000080",
        "10.0.0:80",
        "10.0.0.300:80",
        "010.0.0.1:80",
        "1.2.3.4.5:80",
        "fd00::1:80",
        "[fd00::1]80",
        "[fd00::1",
        "[10.0.0.1]:80",
        "[fe80::1%eth0]:80",
        "[]:80",
        "db",
        "-db:80",
        "db-:80",
        "db..\n:80",
        "user@db:80",
        "http://db:80",
        "db:80/path",
        "d b:80",
        "dé:80",
        "x" * 254 + ":80",
    ],
)
def test_refused(text: str) -> None:
    assert parse_authority(text) is None


@given(st.text() | st.text("0123456789.:[]abf", max_size=40))
def test_never_fails(text: str) -> None:
    found = parse_authority(text)
    assert found is None or 1 <= found.port <= 65535


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_endpoint(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    if not (isinstance(ip, ipaddress.IPv6Address) and (ip.ipv4_mapped or ip.scope_id)):
        assert parse_authority(str(Endpoint(ip, port))) == Endpoint(ip, port)
