"""Addresses of TCP sockets in the form the data path uses: the kernel's text and a port.

Text, not `ipaddress` objects: accept() and getsockname() return it and connect() takes it, and
making an object of each address of each connection would cost more than deciding about it.
An IPv4 address seen through an IPv6 socket is always unmapped, so one host has one text.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from _socket import socket as RawSocket
from functools import lru_cache
from typing import Any, Final, NamedTuple

from nodenet.endpoint import IPAddress

#: getsockopt of the address before NAT or before the capture: the same number at both levels
#: (linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h).
SO_ORIGINAL_DST: Final = 80
_SOL_IP: Final = socket.SOL_IP
_SOL_IPV6: Final = socket.IPPROTO_IPV6
_SOCKADDR_IN: Final = struct.Struct("!2xH4s8x")
_SOCKADDR_IN6: Final = struct.Struct("!2xH4x16s4x")
_MAPPED: Final = "::ffff:"
#: Addresses kept as objects, 200 bytes each: those that a node's pods talk to.
_ADDRESSES_KEPT: Final = 16_384


class Address(NamedTuple):
    """One end of a connection. ``scope`` is the interface of an IPv6 link-local address, else 0."""

    host: str
    port: int
    scope: int = 0

    @property
    def is_ipv6(self) -> bool:
        """Whether it takes an IPv6 socket to reach it."""
        return ":" in self.host

    @property
    def sockaddr(self) -> tuple[Any, ...]:
        """What connect() and bind() take."""
        return (self.host, self.port, 0, self.scope) if self.scope else (self.host, self.port)

    def __str__(self) -> str:
        """``10.0.0.1:80`` or ``[fd00::1]:80``, as everywhere in nodenet."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def from_sockaddr(name: tuple[Any, ...]) -> Address:
    """From what accept(), getsockname() and getpeername() return, for both families."""
    host = name[0]
    # only v4-mapped addresses are printed with this head and dots
    if host.startswith(_MAPPED) and "." in host:
        return Address(host[7:], name[1])
    return Address(host, name[1], name[3] if len(name) == 4 else 0)


def original_destination(sock: RawSocket, *, ipv6: bool) -> Address | None:
    """Where a redirected connection wanted to go; None when nobody redirected it.

    Answered by conntrack (iptables backend) or by the getsockopt program (eBPF backend), at the
    level of the family of the peer's address, which ``ipv6`` says.
    """
    return _original6(sock) if ipv6 else _original4(sock)


def _original4(sock: RawSocket) -> Address | None:
    try:
        raw = sock.getsockopt(_SOL_IP, SO_ORIGINAL_DST, _SOCKADDR_IN.size)
    except OSError:  # ENOENT: not redirected; ENOTSUP, ENOPROTOOPT: nobody answers here
        return None
    if len(raw) < _SOCKADDR_IN.size:
        return None
    port, host = _SOCKADDR_IN.unpack(raw)
    return Address(socket.inet_ntop(socket.AF_INET, host), port)


def _original6(sock: RawSocket) -> Address | None:
    try:
        raw = sock.getsockopt(_SOL_IPV6, SO_ORIGINAL_DST, _SOCKADDR_IN6.size)
    except OSError:
        return None
    if len(raw) < _SOCKADDR_IN6.size:
        return None
    port, host = _SOCKADDR_IN6.unpack(raw)
    return from_sockaddr((socket.inet_ntop(socket.AF_INET6, host), port, 0, 0))


@lru_cache(_ADDRESSES_KEPT)
def ip_address(host: str) -> IPAddress:
    """The address of a socket's host text; the zone of a link-local one is left out."""
    return ipaddress.ip_address(host.partition("%")[0])
