"""The server's metrics under upstream's names.

Names, labels and the five help texts that upstream's tests compare: apiserver-network-proxy:
pkg/server/metrics/metrics.go and pkg/testing/metrics/metrics.go. What ours has beyond them begins
with ``nodenet_``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from nodenet import __version__
from nodenet.agents.konnectivity.server import Server
from nodenet.konnectivity.exposition import Labels, family, gauge, histogram
from nodenet.konnectivity.packets import PacketType
from nodenet.konnectivity.server_counts import (
    LATENCY_BUCKETS,
    UNKNOWN,
    Histogram,
    Packets,
)
from nodenet.konnectivity.server_tunnel import Frontend

_PREFIX: Final = "konnectivity_network_proxy_server_"
_OURS: Final = "nodenet_konnectivity_server_"
#: Prometheus' own, which upstream leaves as they are for leases.
LEASE_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LeaseMetrics:
    """What keeping and counting leases has cost; see `server_leases`."""

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str], int] = {}
        """By HTTP status and reason."""
        self.deletes: dict[tuple[str, str], int] = {}
        self.list_seconds: dict[str, Histogram] = {}
        """By HTTP status."""
        self.delete_seconds: dict[str, Histogram] = {}
        self.culled = 0


def render(server: Server, leases: LeaseMetrics) -> str:
    """A scrape, without what is known of every process."""
    return "".join([*_upstream(server), *_leases(leases), *_ours(server)])


def _upstream(server: Server) -> Iterator[str]:
    core, counts = server.core, server.core.counts
    yield _histogram(
        "dial_duration_seconds", "Seconds from a dial to its good answer.", counts.dial_seconds
    )
    writes = counts.write_seconds
    # what was written at once took no time that could be measured
    immediate = [counts.writes + writes.counts[0], *writes.counts[1:]]
    yield histogram(
        _PREFIX + "frontend_write_duration_seconds",
        "Seconds that payload waited for its client.",
        LATENCY_BUCKETS,
        [({}, immediate, writes.sum)],
    )
    yield _histogram(
        "connection_duration_seconds",
        "Seconds a tunnel lasted, its dial not counted.",
        counts.connection_seconds,
    )
    yield family(
        _PREFIX + "grpc_connections",
        "gauge",
        "Streams open now, by service method.",
        [
            ({"service_method": "Connect"}, len(server.agents.streams)),
            ({"service_method": "Proxy"}, len(server.frontends.streams)),
        ],
    )
    yield gauge(
        _PREFIX + "http_connections",
        "HTTP CONNECT sockets open now.",
        len(server.frontends.sockets),
    )
    storages = core.backends.storages
    yield gauge(
        _PREFIX + "ready_backend_connections",
        "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use "
        "ready_backends",
        len(storages[-1]),
    )
    yield family(
        _PREFIX + "ready_backends",
        "gauge",
        "Number of konnectivity agent connected to the proxy server",
        [({"proxy_strategy": storage.strategy.value}, len(storage)) for storage in storages],
    )
    yield gauge(
        _PREFIX + "pending_backend_dials",
        "Current number of pending backend dial requests",
        core.pending,
    )
    yield gauge(
        _PREFIX + "established_connections",
        "Current number of established end-to-end connections (post-dial).",
        core.established,
    )
    yield family(
        _PREFIX + "full_receive_channels",
        "gauge",
        "Streams held back now because what they carry is not taken, by service method.",
        [
            ({"service_method": "Connect"}, sum(s.call.paused for s in server.agents.streams)),
            ({"service_method": "Proxy"}, sum(tunnel.held for tunnel in core.tunnels())),
        ],
    )
    yield family(
        _PREFIX + "dial_failure_count",
        "counter",
        "Number of dial failures observed. Multiple failures can occur for a single dial request.",
        [({"reason": reason.value}, n) for reason, n in counts.dial_failures.items() if n],
    )
    segments = {
        "from_client": counts.from_client,
        "to_client": counts.to_client,
        "from_agent": counts.from_agent,
        "to_agent": counts.to_agent,
    }
    yield family(
        _PREFIX + "stream_packets_total",
        "counter",
        "Packets by where they came from or went to, and their type.",
        [sample for segment, packets in segments.items() for sample in _packets(segment, packets)],
    )
    yield family(
        _PREFIX + "stream_errors_total",
        "counter",
        "Streams that ended badly, by segment, gRPC code and packet type.",
        [
            ({"segment": segment, "code": code, "packet_type": kind}, n)
            for (segment, code, kind), n in sorted(counts.stream_errors.items())
        ],
    )


def _leases(leases: LeaseMetrics) -> Iterator[str]:
    yield family(
        _PREFIX + "culled_leases_count",
        "counter",
        "Expired leases of other servers that were deleted.",
        [({}, leases.culled)],
    )
    for name, what, totals, seconds in (
        ("lease_delete", "Deletions of expired leases", leases.deletes, leases.delete_seconds),
        ("lease_list", "Lists of leases", leases.lists, leases.list_seconds),
    ):
        yield family(
            f"{_PREFIX}{name}_total",
            "counter",
            f"{what}, by HTTP status and reason.",
            [
                ({"http_status_code": code, "reason": reason}, n)
                for (code, reason), n in sorted(totals.items())
            ],
        )
        yield histogram(
            f"{_PREFIX}{name}_latency_seconds",
            f"{what}: seconds a call took.",
            LEASE_BUCKETS,
            [({"http_status_code": c}, h.counts, h.sum) for c, h in sorted(seconds.items())],
        )


def _ours(server: Server) -> Iterator[str]:
    core, counts = server.core, server.core.counts
    yield family(
        _OURS + "resets_total",
        "counter",
        "Tunnels cut by this server, by reason.",
        [({"reason": reason.value}, n) for reason, n in counts.resets.items()],
    )
    yield family(
        _OURS + "bytes_total",
        "counter",
        "Payload forwarded, by segment.",
        [
            ({"segment": "to_agent"}, counts.bytes_to_agents),
            ({"segment": "to_client"}, counts.bytes_to_clients),
        ],
    )
    yield gauge(
        _OURS + "queue_bytes",
        "Payload that waits for agents and clients to take it.",
        sum(tunnel.queue.size + _backlog(tunnel.frontend) for tunnel in core.tunnels()),
    )
    yield gauge(_OURS + "draining", "Whether no new dials are taken.", server.draining)
    yield gauge(
        _OURS + "server_count", "Servers there are, as agents are told.", server.agents.server_count
    )
    yield gauge("nodenet_asyncio_tasks", "Tasks of the event loop.", len(asyncio.all_tasks()))
    yield family("nodenet_build_info", "gauge", "This program.", [({"version": __version__}, 1)])


def _backlog(frontend: Frontend | None) -> int:
    return frontend.backlog() if frontend is not None else 0


def _histogram(name: str, help: str, seen: Histogram) -> str:
    return histogram(_PREFIX + name, help, seen.bounds, [({}, seen.counts, seen.sum)])


def _packets(segment: str, packets: Packets) -> Iterator[tuple[Labels, float]]:
    names = [kind.name for kind in PacketType] + ["Unknown"]
    assert len(names) == UNKNOWN + 1
    for name, count in zip(names, packets.by_type, strict=True):
        if count:
            yield {"segment": segment, "packet_type": name}, count
