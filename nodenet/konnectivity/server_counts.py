"""What a server has done, as plain numbers: the metrics are made of them when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum
from typing import Final

from nodenet.konnectivity.packets import PacketType

#: Buckets of upstream's histograms, seconds (apiserver-network-proxy: pkg/server/metrics).
LATENCY_BUCKETS: Final = (1e-6, 1e-5, 1e-4, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5)
DURATION_BUCKETS: Final = (
    *(1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0),
    *(1800.0, 3600.0, 14400.0, 43200.0, 86400.0),
)
#: Index of a packet type that is not known.
UNKNOWN: Final = len(PacketType)
#: From the type on the wire to the index.
TYPE_INDEX: Final = {int(kind): index for index, kind in enumerate(PacketType)}


class DialFailure(Enum):
    """Why a dial came to nothing: the metric's ``reason``. The last one is ours."""

    NO_AGENT = "no_agent"
    ERROR_RESPONSE = "error_response"
    UNRECOGNIZED_RESPONSE = "unrecognized_response"
    SEND_RSP = "send_rsp"
    BACKEND_CLOSE = "backend_close"
    BACKEND_DIAL_TIMEOUT = "backend_dial_timeout"
    FRONTEND_CLOSE = "frontend_close"
    TOO_MANY_DIALS = "too_many_dials"


class Reset(Enum):
    """Why a connection was cut by the server."""

    STALLED = "frontend_stalled"
    WINDOW = "window_exceeded"
    IDLE = "half_closed_idle"
    LINGER = "close_timeout"


class Histogram:
    """Counts a bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Packets:
    """Messages of one segment by type: `TYPE_INDEX` says where a type's number is."""

    __slots__ = ("by_type",)

    def __init__(self) -> None:
        self.by_type = [0] * (UNKNOWN + 1)

    def count(self, kind: int) -> None:
        """Counts one message of a type as it is on the wire."""
        self.by_type[TYPE_INDEX.get(kind, UNKNOWN)] += 1


class ServerCounts:
    """All of one server's."""

    def __init__(self) -> None:
        self.from_client = Packets()
        self.to_client = Packets()
        self.from_agent = Packets()
        self.to_agent = Packets()
        self.stream_errors: dict[tuple[str, str, str], int] = {}
        """By segment, gRPC code and packet type."""
        self.dial_failures = dict.fromkeys(DialFailure, 0)
        self.resets = dict.fromkeys(Reset, 0)
        self.dial_seconds = Histogram(LATENCY_BUCKETS)
        self.write_seconds = Histogram(LATENCY_BUCKETS)
        """Waits of frontends that had to wait; what was written at once is in ``writes``."""
        self.writes = 0
        self.connection_seconds = Histogram(DURATION_BUCKETS)
        self.bytes_to_agents = 0
        self.bytes_to_clients = 0

    def stream_error(self, segment: str, code: str, packet_type: str) -> None:
        """Counts a stream that ended badly."""
        key = (segment, code, packet_type)
        self.stream_errors[key] = self.stream_errors.get(key, 0) + 1
