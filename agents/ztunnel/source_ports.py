"""Which port a dial comes from. Chosen here and not by the kernel.

Towards an application the kernel could not choose: it does not know the remote clients' ports,
and a dial from one in use would land in that client's connection. Towards the outside it could,
but the proxy would then take away the ports of the pod's own connections, which run dry after one
range of short connections a minute to one destination: the kernel does not take a 4-tuple in
TIME_WAIT by itself, and its search for the last free ones takes milliseconds. A port bound by hand
may take it over (with TCP timestamps; Linux: net/ipv4/tcp_ipv4.c:tcp_twsk_unique).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Outside of the range that clients take ports from by default (32768 to 60999), the pod's own
#: and remote ones, so that they seldom pick one of ours while we have it.
SOURCE_PORTS: Final = range(10240, 32768)
#: Tries in the range, then as many in all unprivileged ports.
TRIES: Final = 32

_ANY_PORTS: Final = range(1024, 65536)
#: Coprime to the size of the range: walking by it visits every port before one comes again.
_STEP: Final = 7919
_RESERVED: Final = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")


class SourcePorts:
    """Proposes ports, each as seldom as possible. ``reserved`` ones are never proposed."""

    __slots__ = ("_next", "_reserved", "_rng")

    def __init__(self, rng: random.Random, reserved: frozenset[int] = frozenset()) -> None:
        self._rng = rng
        self._reserved = reserved
        self._next = rng.randrange(len(SOURCE_PORTS))

    def propose(self) -> Iterator[int]:
        """`TRIES` ports of `SOURCE_PORTS`, then as many of all others."""
        for _ in range(TRIES):
            self._next = (self._next + _STEP) % len(SOURCE_PORTS)
            if (port := SOURCE_PORTS[self._next]) not in self._reserved:
                yield port
        for _ in range(TRIES):
            if (port := self._rng.choice(_ANY_PORTS)) not in self._reserved:
                yield port


def reserved_ports() -> frozenset[int]:
    """The ports the calling thread's namespace keeps for its applications: ``8080,9148-9150``."""
    with contextlib.suppress(OSError):
        return parse_ports(_RESERVED.read_text())
    return frozenset()


def parse_ports(text: str) -> frozenset[int]:
    """The ports of a list of numbers and ranges, as the kernel writes them."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)
