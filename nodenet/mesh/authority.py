"""The ``:authority`` of a CONNECT: what the peer wants, by address or by a service's hostname."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

from nodenet.endpoint import IPAddress, unmapped
from nodenet.mesh.model import Endpoint

PORT_MAX: Final = 65535

#: A hostname; one without any letter is an address that somebody got wrong.
_HOSTNAME: Final = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")


class HostPort(NamedTuple):
    """A service's hostname and a port of the service."""

    hostname: str
    port: int

    def __str__(self) -> str:
        return f"{self.hostname}:{self.port}"


Authority = Endpoint | HostPort


def parse_authority(text: str) -> Authority | None:
    """``10.0.0.1:80``, ``[fd00::1]:80`` or ``db.shop.svc:80``; None for anything else.

    A v4-mapped address is returned as IPv4. Users, zones and port 0 mean nothing in a CONNECT.
    """
    host, colon, digits = text.rpartition(":")
    if not colon or _PORT.fullmatch(digits) is None:
        return None
    port = int(digits)
    if not 0 < port <= PORT_MAX:
        return None
    if host.startswith("[") and host.endswith("]"):
        address = _address(host[1:-1], 6)
    else:
        address = _address(host, 4)
        if address is None and _HOSTNAME.fullmatch(host) is not None:
            return HostPort(host, port)
    return None if address is None else Endpoint(unmapped(address), port)


def _address(text: str, version: int) -> IPAddress | None:
    try:
        return ipaddress.IPv4Address(text) if version == 4 else _ipv6(text)
    except ValueError:
        return None


def _ipv6(text: str) -> ipaddress.IPv6Address:
    address = ipaddress.IPv6Address(text)
    if address.scope_id is not None:
        raise ValueError("a zone means something on one host only")
    return address
