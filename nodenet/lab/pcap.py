"""Packets to a file and back: the libpcap format, and as much of Ethernet, IP and TCP as a proof
of what crossed a link needs.

Source: draft-ietf-opsawg-pcap; RFC 791 section 3.1, RFC 8200 sections 3 and 4, RFC 9293
section 3.1.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from nodenet.errors import NodenetError

TCP: Final = 6
SYN: Final = 0x02
ACK: Final = 0x10

#: Magic number of a file with times in nanoseconds.
_MAGIC: Final = 0xA1B23C4D
_ETHERNET: Final = 1
#: Longer than any packet: those of a veth pair are not yet cut into segments.
SNAP_BYTES: Final = 262_144
#: magic, version, version, reserved, reserved, snap length, link type.
_FILE_HEADER: Final = struct.Struct("<IHHIIII")
#: seconds, nanoseconds, bytes here, bytes on the link.
_PACKET_HEADER: Final = struct.Struct("<IIII")
_ETHERNET_BYTES: Final = 14
_TYPE_IPV4, _TYPE_IPV6 = b"\x08\x00", b"\x86\xdd"
_TCP_HEADER: Final = struct.Struct(">HHIIBB")
#: Hop-by-hop options, routing, destination options: next header, and length in units of 8 bytes.
_SKIPPED: Final = (0, 43, 60)
_FRAGMENT: Final = 44


class Packet(NamedTuple):
    """One IP packet. Of TCP the ports, flags and sequence number; else they are 0."""

    source: str
    target: str
    protocol: int
    """Number of the protocol above IP; that of a later fragment is known, its ports are not."""
    source_port: int
    target_port: int
    flags: int
    sequence: int
    payload: bytes
    """Above TCP, or above IP when it is something else."""


class CaptureBroken(NodenetError):
    """A file is not a capture that can be read."""


def file_header() -> bytes:
    """What a capture of Ethernet frames begins with."""
    return _FILE_HEADER.pack(_MAGIC, 2, 4, 0, 0, SNAP_BYTES, _ETHERNET)


def packet_header(time_ns: int, length: int) -> bytes:
    """What stands before a frame of that length; ``time_ns`` is Unix time."""
    return _PACKET_HEADER.pack(time_ns // 10**9, time_ns % 10**9, length, length)


def read(path: Path) -> Iterator[Packet]:
    """The IP packets of a file written with `file_header` and `packet_header`.

    Frames of something else are passed over. CaptureBroken for another file or a broken one.
    """
    data = path.read_bytes()
    if data[: _FILE_HEADER.size] != file_header():
        raise CaptureBroken(f"not a capture of this lab: {path}")
    start = _FILE_HEADER.size
    while start < len(data):
        if start + _PACKET_HEADER.size > len(data):
            raise CaptureBroken(f"cut off: {path}")
        length = _PACKET_HEADER.unpack_from(data, start)[2]
        start += _PACKET_HEADER.size
        if start + length > len(data):
            raise CaptureBroken(f"cut off: {path}")
        packet = parse_frame(data[start : start + length])
        if packet is not None:
            yield packet
        start += length


def parse_frame(frame: bytes) -> Packet | None:
    """The IP packet in an Ethernet frame; None when it holds none, or one that is cut off."""
    kind = frame[12:_ETHERNET_BYTES]
    packet = frame[_ETHERNET_BYTES:]
    if kind == _TYPE_IPV4 and len(packet) >= 20:
        return _ipv4(packet)
    if kind == _TYPE_IPV6 and len(packet) >= 40:
        return _ipv6(packet)
    return None


def _ipv4(packet: bytes) -> Packet | None:
    header = (packet[0] & 0x0F) * 4
    total = int.from_bytes(packet[2:4], "big")
    fragment = int.from_bytes(packet[6:8], "big") & 0x1FFF
    source, target = (str(ipaddress.IPv4Address(packet[i : i + 4])) for i in (12, 16))
    # a frame may be padded; a length of 0 is that of a packet of more than 64 KiB
    payload = packet[header : total or len(packet)]
    return _above(source, target, packet[9], payload, first=not fragment)


def _ipv6(packet: bytes) -> Packet | None:
    length = int.from_bytes(packet[4:6], "big")
    source, target = (str(ipaddress.IPv6Address(packet[i : i + 16])) for i in (8, 24))
    following, payload = packet[6], packet[40 : 40 + length if length else len(packet)]
    first = True
    while following in (*_SKIPPED, _FRAGMENT) and len(payload) >= 8:
        size = 8 if following == _FRAGMENT else 8 * (payload[1] + 1)
        if following == _FRAGMENT:
            first = first and not int.from_bytes(payload[2:4], "big") & 0xFFF8
        following, payload = payload[0], payload[size:]
    return _above(source, target, following, payload, first=first)


def _above(source: str, target: str, protocol: int, payload: bytes, *, first: bool) -> Packet:
    if protocol != TCP or not first or len(payload) < 20:
        return Packet(source, target, protocol, 0, 0, 0, 0, payload)
    sport, dport, sequence, _, offset, flags = _TCP_HEADER.unpack_from(payload)
    return Packet(source, target, TCP, sport, dport, flags, sequence, payload[(offset >> 4) * 4 :])
