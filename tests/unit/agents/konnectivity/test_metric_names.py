"""Every metric of upstream's: name, type, labels with their values, buckets.

The tables are those of apiserver-network-proxy: pkg/server/metrics, pkg/agent/metrics and
konnectivity-client/pkg/common/metrics. What dashboards and alerts are made of must not move.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random

from nodenet.agents.konnectivity import agent_metrics, server_metrics
from nodenet.agents.konnectivity.agent_metrics import LeaseCounts
from nodenet.agents.konnectivity.agent_remote import Sockets
from nodenet.agents.konnectivity.agent_set import ClientSet
from nodenet.agents.konnectivity.server_metrics import LEASE_BUCKETS, LeaseMetrics
from nodenet.konnectivity.packets import PacketType
from nodenet.konnectivity.server_counts import DialFailure, Histogram
from nodenet.konnectivity.strategies import Strategy
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.agent_scene import config_for, run
from tests.unit.agents.konnectivity.server_wire import serving

SERVER = "konnectivity_network_proxy_server_"
AGENT = "konnectivity_network_proxy_agent_"
METHODS = {"service_method": {"Proxy", "Connect"}}
TYPES = "DIAL_REQ DIAL_RSP CLOSE_REQ CLOSE_RSP DATA DIAL_CLS DRAIN Unknown"
#: Names of upstream's, type, labels with the values that are there below.
SERVER_METRICS: dict[str, tuple[str, dict[str, set[str]]]] = {
    "dial_duration_seconds": ("histogram", {}),
    "frontend_write_duration_seconds": ("histogram", {}),
    "connection_duration_seconds": ("histogram", {}),
    "grpc_connections": ("gauge", METHODS),
    "http_connections": ("gauge", {}),
    "ready_backend_connections": ("gauge", {}),
    "ready_backends": ("gauge", {"proxy_strategy": {"default", "destHost", "defaultRoute"}}),
    "pending_backend_dials": ("gauge", {}),
    "established_connections": ("gauge", {}),
    "full_receive_channels": ("gauge", METHODS),
    "dial_failure_count": (
        "counter",
        {
            "reason": {
                *("no_agent", "error_response", "unrecognized_response", "send_rsp"),
                *("backend_close", "backend_dial_timeout", "frontend_close"),
            }
        },
    ),
    "stream_packets_total": (
        "counter",
        {
            "segment": {"from_client", "to_client", "from_agent", "to_agent"},
            "packet_type": set(TYPES.split()),
        },
    ),
    "stream_errors_total": (
        "counter",
        {"segment": {"from_agent"}, "code": {"Unavailable"}, "packet_type": {"Unknown"}},
    ),
    "culled_leases_count": ("counter", {}),
    "lease_delete_total": ("counter", {"http_status_code": {"409"}, "reason": {"Conflict"}}),
    "lease_list_total": ("counter", {"http_status_code": {"200"}, "reason": {"OK"}}),
    "lease_delete_latency_seconds": ("histogram", {"http_status_code": {"409"}}),
    "lease_list_latency_seconds": ("histogram", {"http_status_code": {"200"}}),
}
AGENT_METRICS: dict[str, tuple[str, dict[str, set[str]]]] = {
    "dial_duration_seconds": ("histogram", {}),
    "server_connection_failure_count": ("counter", {"direction": {"from_server"}}),
    "endpoint_dial_failure_total": ("counter", {"reason": {"timeout", "unknown"}}),
    "open_server_connections": ("gauge", {}),
    "known_server_count": ("gauge", {}),
    "open_endpoint_connections": ("gauge", {}),
    "stream_packets_total": (
        "counter",
        {"segment": {"from_agent", "to_agent"}, "packet_type": set(TYPES.split())},
    ),
    "stream_errors_total": (
        "counter",
        {"segment": {"to_agent"}, "code": {"Canceled"}, "packet_type": {"Unknown"}},
    ),
    "lease_lists_total": ("counter", {"http_response_code": {"200"}, "reason": {"OK"}}),
    "lease_watches_total": ("counter", {}),
    "lease_list_latency_seconds": ("histogram", {"http_response_code": {"200"}}),
}
BUCKETS = {
    SERVER + "dial_duration_seconds": "1e-06 1e-05 0.0001 0.005 0.025 0.1 0.5 2.5 12.5 +Inf",
    SERVER + "frontend_write_duration_seconds": (
        "1e-06 1e-05 0.0001 0.005 0.025 0.1 0.5 2.5 12.5 +Inf"
    ),
    SERVER + "connection_duration_seconds": (
        "1 5 15 30 60 300 900 1800 3600 14400 43200 86400 +Inf"
    ),
    SERVER + "lease_list_latency_seconds": "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf",
    SERVER + "lease_delete_latency_seconds": "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf",
    AGENT + "dial_duration_seconds": "0.005 0.025 0.1 0.5 2.5 10 30 +Inf",
    AGENT + "lease_list_latency_seconds": "0.005 0.025 0.1 0.5 2.5 10 30 +Inf",
}


class Scrape:
    """What a text says: types, and of each metric the labels with all their values."""

    def __init__(self, text: str) -> None:
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        self.helps = set(re.findall(r"^# HELP (\S+) \S", text, re.M))
        self.labels: dict[str, dict[str, set[str]]] = {}
        self.buckets: dict[str, list[str]] = {}
        for name, braces in re.findall(r"^([a-z_]+)(?:\{(.*)\})? \S+$", text, re.M):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            if self.types.get(base) != "histogram":
                base = name
            seen = self.labels.setdefault(base, {})
            for key, value in re.findall(r'(\w+)="([^"]*)"', braces):
                if key == "le":
                    self.buckets.setdefault(base, []).append(value)
                else:
                    seen.setdefault(key, set()).add(value)

    def check(self, prefix: str, wanted: dict[str, tuple[str, dict[str, set[str]]]]) -> None:
        """AssertionError for what is missing or another thing than upstream's."""
        names = {name.removeprefix(prefix) for name in self.types if name.startswith(prefix)}
        assert names == set(wanted)
        for name, (kind, labels) in wanted.items():
            assert self.types[prefix + name] == kind, name
            assert prefix + name in self.helps, name
            found = self.labels.get(prefix + name, {})
            assert found.keys() == labels.keys(), name
            for key, values in labels.items():
                assert values <= found[key], (name, key)
        for name, bounds in BUCKETS.items():
            if name.startswith(prefix):
                assert self.buckets[name] == bounds.split(), name


def test_the_server_has_every_metric(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, strategies=tuple(Strategy)) as server:
            counts = server.core.counts
            for reason in DialFailure:
                server.core.failed(reason)
            segments = (counts.from_client, counts.to_client, counts.from_agent, counts.to_agent)
            for packets in segments:
                for kind in (*PacketType, 99):
                    packets.count(kind)
            counts.stream_error("from_agent", "Unavailable", "Unknown")
            leases = LeaseMetrics()
            leases.lists["200", "OK"] = leases.deletes["409", "Conflict"] = 1
            leases.list_seconds["200"] = Histogram(LEASE_BUCKETS)
            leases.delete_seconds["409"] = Histogram(LEASE_BUCKETS)
            Scrape(server_metrics.render(server, leases)).check(SERVER, SERVER_METRICS)

    run(test())


def test_the_agent_has_every_metric(certs: Certificates) -> None:
    async def test() -> None:
        sockets = Sockets(asyncio.get_running_loop())
        try:
            clients = ClientSet(config_for(certs, 8091), sockets, rng=Random(1))
            counts = clients.counts
            counts.dial_failures = {"timeout": 1, "unknown": 1}
            for packets in (counts.packets_in, counts.packets_out):
                packets |= dict.fromkeys([*PacketType, -1], 1)
            clients.stream_errors["Canceled"] = 2
            leases = LeaseCounts()
            leases.lists["200", "OK"] = 1
            leases.latency["200"] = ([0] * 8, 0.0)
            text = agent_metrics.render(clients, sockets, leases)
            Scrape(text).check(AGENT, AGENT_METRICS)
            assert f'{AGENT}server_connection_failure_count{{direction="from_server"}} 2' in text
        finally:
            sockets.close()

    run(test())
