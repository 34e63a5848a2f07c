"""The same packets as `nodenet.lab.pcap.read`, read by scapy: a witness that nobody here wrote.

scapy is not among what nodenet needs (docs/dependencies.md). Where it is installed, it reads what
`lab demo` has captured; nodenet's own reader does elsewhere. A test compares the two.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodenet.lab.pcap import TCP, Packet


def available() -> bool:
    """Whether scapy is installed."""
    return importlib.util.find_spec("scapy") is not None


def name() -> str:
    """``scapy 2.6.1``."""
    import scapy

    return f"scapy {scapy.__version__}"


def read(path: Path) -> Iterator[Packet]:
    """The IP packets of a capture."""
    from scapy.layers import inet, inet6, l2  # importing them makes their layers known
    from scapy.utils import PcapReader

    assert l2
    with PcapReader(str(path)) as reader:
        for frame in reader:
            if inet.IP in frame:
                ip = frame[inet.IP]
                yield _packet(ip, ip.proto, frame, inet.TCP)
            elif inet6.IPv6 in frame:
                ip = frame[inet6.IPv6]
                yield _packet(ip, _above(ip), frame, inet.TCP)


def _packet(ip: Any, protocol: int, frame: Any, kind: Any) -> Packet:
    if protocol != TCP or kind not in frame:
        return Packet(ip.src, ip.dst, protocol, 0, 0, 0, 0, bytes(ip.payload))
    tcp = frame[kind]
    # as it came, without the padding of a short frame: bytes(tcp.payload) would be built anew
    body = tcp.original[tcp.dataofs * 4 :]
    return Packet(ip.src, ip.dst, TCP, tcp.sport, tcp.dport, int(tcp.flags), tcp.seq, body)


def _above(ip: Any) -> int:
    """The protocol above IPv6 and its extension headers."""
    layer = ip
    while type(layer.payload).__name__.startswith("IPv6ExtHdr"):
        layer = layer.payload
    return int(layer.nh)
