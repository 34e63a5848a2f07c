"""ENDPOINT: how an address with a port is written, in tables, in JSON and on the command line.

``10.0.0.1:80`` and ``[fd00::1]:80``; a v4-mapped address is shown as IPv4. What is read may also
be ``svc.ns:80`` or ``NS/POD:80``. The same text goes in and out, so an endpoint printed by one
command is accepted by the next.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from nodenet.errors import UsageError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

PORT_MIN = 1
PORT_MAX = 65535
#: The port that an error message proposes when there is none.
EXAMPLE_PORT = 5432

_MAPPED_PREFIX = b"\0" * 10 + b"\xff\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address or a name, with a port. Exactly one of ``address`` and ``name`` is set."""

    address: IPAddress | None = None
    name: str | None = None
    port: int

    def __str__(self) -> str:
        if self.address is None:
            return f"{self.name}:{self.port}"
        return format_endpoint(self.address, self.port)


def format_endpoint(address: IPAddress, port: int) -> str:
    """``10.0.0.1:80`` or ``[fd00::1]:80``; v4-mapped as IPv4. ``port`` may be 0: not yet bound."""
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return f"[{address}]:{port}" if mapped is None else f"{mapped}:{port}"
    return f"{address}:{port}"


def format_host_port(host: str, port: int) -> str:
    """As `format_endpoint`, of text: an address as the kernel gives it, or a name."""
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def format_raw_endpoint(raw: bytes, port: int) -> str:
    """As `format_endpoint`, from 16 bytes in network order: the fast way for many rows.

    ValueError when ``raw`` is not 16 bytes long.
    """
    if raw.startswith(_MAPPED_PREFIX):
        return f"{socket.inet_ntop(socket.AF_INET, raw[12:])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{port}"


def parse_port(text: str, where: str) -> int:
    """A port of 1 to 65535. ``where`` is what the user wrote and is named in the UsageError."""
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"port {text!r} is not a number in {where}")
    port = int(text)
    if not PORT_MIN <= port <= PORT_MAX:
        raise UsageError(f"port {port} out of range {PORT_MIN}-{PORT_MAX} in {where}")
    return port


def parse_endpoint(text: str, *, where: str | None = None) -> Endpoint:
    """Reads an ENDPOINT; UsageError says what is wrong and what to write instead.

    ``where`` is named in errors about the port, by default ``text`` itself.
    """
    where = where or text
    if text.startswith("["):
        return _parse_bracketed(text, where)
    if text.count(":") > 1:
        raise _bare_ipv6(text)
    host, colon, port = text.rpartition(":")
    if not colon:
        raise UsageError(f"{text} needs a port; write {text}:{EXAMPLE_PORT}")
    if not host:
        raise UsageError(f"{text} has no address; write 10.0.0.1{text}")
    number = parse_port(port, where)
    if host.replace(".", "").isdigit():
        try:
            return Endpoint(address=ipaddress.IPv4Address(host), port=number)
        except ValueError:
            raise UsageError(f"{host} is not an IPv4 address in {where}") from None
    return Endpoint(name=host, port=number)


def _parse_bracketed(text: str, where: str) -> Endpoint:
    inside, closed, after = text[1:].partition("]")
    try:
        address: IPAddress = ipaddress.IPv6Address(inside)
    except ValueError:
        raise UsageError(f"{inside} is not an IPv6 address in {where}") from None
    if not closed or not after.startswith(":"):
        raise UsageError(f"{text} needs a port; write [{inside}]:{EXAMPLE_PORT}")
    return Endpoint(address=unmapped(address), port=parse_port(after[1:], where))


def _bare_ipv6(text: str) -> UsageError:
    """``fd00::1:80`` is an address as it stands: whether 80 was meant as a port is not known."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        host, _, port = text.rpartition(":")
        return UsageError(f"{text} is not an endpoint; an IPv6 one is written [{host}]:{port}")
    return UsageError(f"{text} needs a port; write [{text}]:{EXAMPLE_PORT}")


def unmapped(address: IPAddress) -> IPAddress:
    """A v4-mapped IPv6 address as IPv4, any other one as it is."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
