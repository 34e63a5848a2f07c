"""The agent's metrics under upstream's names.

Names, labels and the two help texts that upstream's tests compare: apiserver-network-proxy:
pkg/agent/metrics/metrics.go. What ours has beyond them begins with ``nodenet_``.
"""

from __future__ import annotations

import asyncio
from typing import Final

from nodenet import __version__
from nodenet.agents.konnectivity.agent_remote import Sockets
from nodenet.agents.konnectivity.agent_set import ClientSet
from nodenet.konnectivity.agent_tunnel import DIAL_BUCKETS
from nodenet.konnectivity.exposition import family, gauge, histogram
from nodenet.konnectivity.packets import PacketType

_PREFIX: Final = "konnectivity_network_proxy_agent_"
#: Of `agent_lease_list_latency_seconds`: the same as a dial's.
LEASE_BUCKETS: Final = DIAL_BUCKETS


class LeaseCounts:
    """What looking at leases has cost; see `agent_leases`."""

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str], int] = {}
        """By HTTP status and reason."""
        self.latency: dict[str, tuple[list[int], float]] = {}
        """By HTTP status: the counts of `LEASE_BUCKETS` and above, and the sum of seconds."""


def render(clients: ClientSet, sockets: Sockets, leases: LeaseCounts) -> str:
    """A scrape, without what is known of every process."""
    counts = clients.counts
    parts = [
        histogram(
            _PREFIX + "dial_duration_seconds",
            "Seconds a successful dial of an endpoint took.",
            DIAL_BUCKETS,
            [({}, counts.dial_seconds_buckets, counts.dial_seconds_sum)],
        ),
        family(
            _PREFIX + "server_connection_failure_count",
            "counter",
            "Deprecated, see stream_errors_total: streams that a server or the network ended.",
            # nothing fails at the sending side alone here
            [({"direction": "from_server"}, sum(clients.stream_errors.values()))],
        ),
        family(
            "nodenet_konnectivity_agent_connect_failures_total",
            "counter",
            "Attempts to connect to a server that came to nothing.",
            [({}, clients.connect_failures)],
        ),
        family(
            _PREFIX + "endpoint_dial_failure_total",
            "counter",
            "Number of failures dialing the remote endpoint, by reason (example: timeout).",
            [({"reason": r}, n) for r, n in sorted(counts.dial_failures.items()) if n],
        ),
        gauge(
            _PREFIX + "open_server_connections",
            "Servers connected now.",
            len(clients.streams),
        ),
        gauge(_PREFIX + "known_server_count", "Servers there are said to be.", clients.sync.count),
        gauge(
            _PREFIX + "open_endpoint_connections",
            "Current number of open endpoint connections.",
            sockets.open,
        ),
        family(
            _PREFIX + "stream_packets_total",
            "counter",
            "Packets received from and sent to servers.",
            [
                ({"segment": segment, "packet_type": _type_name(kind)}, count)
                for segment, found in (
                    ("to_agent", counts.packets_in),
                    ("from_agent", counts.packets_out),
                )
                for kind, count in sorted(found.items())
            ],
        ),
        family(
            _PREFIX + "stream_errors_total",
            "counter",
            "Streams that a server or the network ended, by gRPC code.",
            [
                ({"segment": "to_agent", "packet_type": "Unknown", "code": code}, count)
                for code, count in sorted(clients.stream_errors.items())
            ],
        ),
        family(
            _PREFIX + "lease_lists_total",
            "counter",
            "Lists of server leases.",
            [
                ({"http_response_code": code, "reason": reason}, count)
                for (code, reason), count in sorted(leases.lists.items())
            ],
        ),
        family(_PREFIX + "lease_watches_total", "counter", "Watches of server leases.", []),
        histogram(
            _PREFIX + "lease_list_latency_seconds",
            "Seconds a list of server leases took.",
            LEASE_BUCKETS,
            [({"http_response_code": c}, n, s) for c, (n, s) in sorted(leases.latency.items())],
        ),
        family(
            "nodenet_konnectivity_agent_tunnel_resets_total",
            "counter",
            "Tunnels cut by this agent: their remotes stalled, or their servers sent too much.",
            [({"reason": reason}, count) for reason, count in counts.resets.items()],
        ),
        gauge(
            "nodenet_konnectivity_agent_held_bytes",
            "Bytes that wait for remotes to take them.",
            sum(s.core.held_bytes for s in clients.streams if s.core) + sockets.leaving_bytes,
        ),
        gauge(
            "nodenet_konnectivity_agent_pending_dials",
            "Dials under way.",
            sum(len(s.core.dials) for s in clients.streams if s.core),
        ),
        gauge("nodenet_asyncio_tasks", "Tasks of the event loop.", len(asyncio.all_tasks())),
        family("nodenet_build_info", "gauge", "This program.", [({"version": __version__}, 1)]),
    ]
    return "".join(parts)


def render_process() -> str:
    """``process_*`` as every Prometheus client has them; blocking, it reads /proc."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def _type_name(kind: int) -> str:
    return PacketType(kind).name if kind in PacketType._value2member_map_ else "Unknown"
