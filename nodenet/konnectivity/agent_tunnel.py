"""One tunnel of an agent, and what the core needs of sockets and of the stream."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from nodenet.rpc.call import Buffer

#: Bytes read from a remote at a time: a tunnel begins small and grows while it fills its reads.
LEAST_READ_BYTES: Final = 16 * 1024
MOST_READ_BYTES: Final = 256 * 1024
#: Without flow control a tunnel.
UNLIMITED: Final = 1 << 62
#: Upper bounds of `Counts.dial_seconds_buckets` (apiserver-network-proxy: pkg/agent/metrics).
DIAL_BUCKETS: Final = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)


class Endpoint(Protocol):
    """One remote as the core uses it: a socket that never blocks, or the dial that makes one."""

    readable: bool
    """`read` may have something: told by the socket, taken back by `read`."""

    def read(self, size: int) -> bytes | None:
        """Up to ``size`` bytes; empty at the end, None when there is nothing now. OSError."""

    def write(self, pieces: Sequence[Buffer]) -> int:
        """How many bytes of all together the socket took, 0 when it takes none now. OSError."""

    def shut(self) -> None:
        """Sends the FIN. OSError."""

    def leave(self, held: Sequence[memoryview]) -> None:
        """The core is done: writes what is held, then closes. Tells nothing any more."""

    def abort(self) -> None:
        """Gives the dial up, or resets the connection. Tells nothing any more."""


class Remotes(Protocol):
    """Makes remotes."""

    def dial(self, tunnel: Tunnel, network: str, host: str, port: int) -> Endpoint:
        """Begins a dial that ends, later, in `agent_core.AgentCore.connected` or `dial_failed`."""


class Line(Protocol):
    """The stream to the server."""

    def want(self) -> None:
        """`agent_core.AgentCore.pull` has something."""

    def pause(self) -> None:
        """No more messages than are under way."""

    def resume(self) -> None:
        """The opposite."""


class Tunnel:
    """One dial and the connection it becomes. Read it; only the core writes."""

    __slots__ = (
        "address",
        "broken",
        "connect_id",
        "credit",
        "dialled_at",
        "endpoint",
        "granted_at",
        "held",
        "held_bytes",
        "in_ring",
        "progress_at",
        "random",
        "read_size",
        "received",
        "remote_ended",
        "room",
        "sent",
        "server_ended",
        "taken",
        "up",
        "window",
    )

    endpoint: Endpoint

    def __init__(
        self, connect_id: int, random: int, address: str, *, credit: int, window: int, now: float
    ) -> None:
        self.connect_id = connect_id
        self.random = random
        self.address = address
        self.dialled_at = now
        self.up = False
        """Connected, and not closed."""
        self.credit = credit
        """Bytes the server takes before its next WINDOW."""
        self.window = window
        """Its size, see `receive_window.Receiving`; 0: the server knows no windows."""
        self.room = window or UNLIMITED
        """Bytes we take before our next WINDOW."""
        self.taken = 0
        """Bytes the remote took that no WINDOW has given back."""
        self.granted_at = now
        """When the last one did, or the tunnel began."""
        self.held: deque[memoryview] = deque()
        self.held_bytes = 0
        self.progress_at = now
        """When the remote last took something, or began to be owed it."""
        self.remote_ended = False
        self.server_ended = False
        self.broken = False
        """The remote takes nothing any more; what is for it is dropped."""
        self.in_ring = False
        self.read_size = LEAST_READ_BYTES
        self.sent = 0
        """Bytes towards the server."""
        self.received = 0
        """Bytes from the server."""


class Counts:
    """What an agent's streams have done; plain numbers, metrics are made of them."""

    __slots__ = (
        "dial_failures",
        "dial_seconds_buckets",
        "dial_seconds_sum",
        "packets_in",
        "packets_out",
        "resets",
    )

    def __init__(self) -> None:
        self.packets_in: dict[int, int] = {}
        """By packet type, -1 for unknown ones."""
        self.packets_out: dict[int, int] = {}
        self.dial_failures: dict[str, int] = {"timeout": 0, "unknown": 0}
        """By the reason of upstream's metric."""
        self.dial_seconds_buckets = [0] * (len(DIAL_BUCKETS) + 1)
        """Dials that took up to each of `DIAL_BUCKETS` and more than the one before; then more."""
        self.dial_seconds_sum = 0.0
        self.resets: dict[str, int] = {"stalled": 0, "window": 0}
        """Tunnels cut here, by reason."""

    def dialled(self, seconds: float) -> None:
        """A dial has its connection."""
        self.dial_seconds_buckets[bisect_left(DIAL_BUCKETS, seconds)] += 1
        self.dial_seconds_sum += seconds


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of ``host:port`` or ``[ipv6]:port``; None when it is neither."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    number = int(port)
    return (host, number) if host and number <= 65_535 else None
