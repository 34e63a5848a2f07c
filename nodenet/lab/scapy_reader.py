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
                yield _packet(ip, ip.proto, ip.payload, inet.TCP)
            elif inet6.IPv6 in frame:
                ip = last = frame[inet6.IPv6]
                while type(last.payload).__name__.startswith("IPv6ExtHdr"):
                    last = last.payload
                yield _packet(ip, last.nh, last.payload, inet.TCP)


def _packet(ip: Any, protocol: int, above: Any, tcp: Any) -> Packet:
    """``original`` is what came, without the padding of a short frame; bytes() would build anew."""
    if not isinstance(above, tcp):
        return Packet(ip.src, ip.dst, protocol, 0, 0, 0, 0, above.original)
    body = above.original[above.dataofs * 4 :]
    return Packet(ip.src, ip.dst, TCP, above.sport, above.dport, int(above.flags), above.seq, body)
