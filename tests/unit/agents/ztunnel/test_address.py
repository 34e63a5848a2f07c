"""One text for one host, whatever socket it was seen through."""

from __future__ import annotations

import socket
from _socket import socket as RawSocket

import pytest

from nodenet.agents.ztunnel.address import Address, from_sockaddr, original_destination


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("10.0.0.1", 80), Address("10.0.0.1", 80)),
        (("::ffff:10.0.0.1", 80, 0, 0), Address("10.0.0.1", 80)),
        (("fd00::1", 443, 7, 0), Address("fd00::1", 443)),
        (("fe80::1", 443, 0, 3), Address("fe80::1", 443, 3)),
        # looks mapped, but is the translated form of RFC 2765
        (("::ffff:0:a00:1", 1, 0, 0), Address("::ffff:0:a00:1", 1)),
    ],
)
def test_v4_mapped_addresses_are_ipv4_and_scopes_stay(
    name: tuple[object, ...], address: Address
) -> None:
    assert from_sockaddr(name) == address


def test_the_kernel_prints_mapped_addresses_as_expected() -> None:
    raw = b"\0" * 10 + b"\xff\xff" + bytes([10, 0, 0, 1])
    printed = socket.inet_ntop(socket.AF_INET6, raw)
    assert from_sockaddr((printed, 1, 0, 0)) == Address("10.0.0.1", 1)


def test_text_and_sockaddr() -> None:
    assert str(Address("10.0.0.1", 80)) == "10.0.0.1:80"
    assert str(Address("fd00::1", 80)) == "[fd00::1]:80"
    assert Address("fd00::1", 80).sockaddr == ("fd00::1", 80)
    assert Address("fe80::1", 80, 3).sockaddr == ("fe80::1", 80, 0, 3)
    assert Address("fd00::1", 80).is_ipv6 and not Address("10.0.0.1", 80).is_ipv6


@pytest.mark.parametrize("ipv6", [False, True])
def test_a_socket_nobody_redirected_has_no_original_destination(ipv6: bool) -> None:
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    sock = RawSocket(family, socket.SOCK_STREAM)
    try:
        assert original_destination(sock, ipv6=ipv6) is None
    finally:
        sock.close()
