"""PROXY protocol version 2, which an application tunnel may expect before the bytes.

A waypoint behind a ztunnel learns from it who connects, to what, and with which identity.
Source: haproxy: doc/proxy-protocol.txt section 2.2; ztunnel: src/proxy.rs. The receiving side is
for tests, the lab and whoever plays the waypoint.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from nodenet.endpoint import IPAddress
from nodenet.hbone.errors import HboneError

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
#: Type of the TLV that holds the peer's SPIFFE id as text.
PEER_IDENTITY: Final = 0xD0

#: Bytes after the fixed part that a receiver takes: an identity has 2048 at most.
MAX_LENGTH: Final = 4096

_PROXY: Final = 0x21  # version 2, command PROXY
_TCP4: Final = 0x11
_TCP6: Final = 0x21
#: Signature, version and command, family and transport, length of what follows.
_HEAD: Final = struct.Struct("!12sBBH")
_ADDRESSES: Final = {_TCP4: struct.Struct("!4s4sHH"), _TCP6: struct.Struct("!16s16sHH")}
_TLV: Final = struct.Struct("!BH")
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"


class ProxyProtocolError(HboneError):
    """A header that cannot be written, or bytes that are none."""


class ProxyHeader(NamedTuple):
    """Who connects, to what. Ports are 0 to 65535; ``identity`` is a SPIFFE id or None."""

    source: IPAddress
    source_port: int
    destination: IPAddress
    destination_port: int
    identity: str | None = None


def encode_proxy_header(header: ProxyHeader) -> bytes:
    """The bytes of the header. ProxyProtocolError when the identity is longer than a peer takes.

    Addresses of two families are both written as IPv6, the IPv4 one mapped: the header has one
    family, and without addresses it would say nothing.
    """
    source, destination = header.source.packed, header.destination.packed
    if len(source) != len(destination):
        source, destination = _as_ipv6(source), _as_ipv6(destination)
    family = _TCP4 if len(source) == 4 else _TCP6
    body = _ADDRESSES[family].pack(source, destination, header.source_port, header.destination_port)
    if header.identity is not None:
        identity = header.identity.encode()
        # also keeps it within the 16 bits of its length
        if len(body) + _TLV.size + len(identity) > MAX_LENGTH:
            raise ProxyProtocolError(
                f"PROXY header not written: the peer's identity has {len(identity)} bytes"
            )
        body += _TLV.pack(PEER_IDENTITY, len(identity)) + identity
    return _HEAD.pack(SIGNATURE, _PROXY, family, len(body)) + body


def decode_proxy_header(data: bytes) -> tuple[ProxyHeader, int] | None:
    """The header that ``data`` begins with and how many bytes it has; None: more are needed.

    Strict: ProxyProtocolError for another version, command or transport, for TLVs that do not fill
    the header, for one that comes twice, for an identity that is not UTF-8.
    """
    if data[: len(SIGNATURE)] != SIGNATURE[: len(data)]:
        raise ProxyProtocolError("no PROXY header: the signature of version 2 is missing")
    if len(data) < _HEAD.size:
        return None
    _, command, family, length = _HEAD.unpack_from(data)
    layout = _ADDRESSES.get(family)
    if command != _PROXY or layout is None:
        raise ProxyProtocolError(
            f"PROXY header with command {command:#04x}, family {family:#04x}: "
            "only TCP of version 2 is possible here"
        )
    if not layout.size <= length <= MAX_LENGTH:
        raise ProxyProtocolError(f"PROXY header of {length} bytes")
    end = _HEAD.size + length
    if len(data) < end:
        return None
    source, destination, source_port, destination_port = layout.unpack_from(data, _HEAD.size)
    identity = None
    seen = set[int]()
    for kind, value in _tlvs(data[_HEAD.size + layout.size : end]):
        if kind in seen:
            raise ProxyProtocolError(f"PROXY header with two TLVs {kind:#04x}")
        seen.add(kind)
        if kind == PEER_IDENTITY:
            identity = _identity(value)
    ip = ipaddress.ip_address
    return ProxyHeader(ip(source), source_port, ip(destination), destination_port, identity), end


def _tlvs(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < _TLV.size:
            raise ProxyProtocolError("PROXY header ends within a TLV")
        kind, length = _TLV.unpack_from(data, at)
        at += _TLV.size
        if len(data) - at < length:
            raise ProxyProtocolError(f"PROXY header ends within TLV {kind:#04x}")
        yield kind, data[at : at + length]
        at += length


def _identity(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ProxyProtocolError("PROXY header with an identity that is not UTF-8") from error


def _as_ipv6(packed: bytes) -> bytes:
    return packed if len(packed) == 16 else _MAPPED + packed
