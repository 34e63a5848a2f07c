"""The metrics port (15020): ztunnel's names where there is something to count, and our own.

Connections are `nodenet.agents.ztunnel.series`; everything else is small and goes through
prometheus-client. ``tokio_*`` is left out: there is no tokio here, ``nodenet_event_loop_lag``
says what they are looked at for. Names and labels: ztunnel: src/metrics/, src/inpod/metrics.rs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from nodenet import __version__
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND
from nodenet.agents.ztunnel.log_writer import LineWriter
from nodenet.agents.ztunnel.loop_lag import LoopLag
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.httpd.messages import Request, Response
from nodenet.httpd.routes import Routes

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

TEXT_TYPE: Final = "text/plain; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text;charset=utf-8;version=1.0.0"
_EOF: Final = b"# EOF\n"
_REPORTERS: Final = {OUTBOUND: "source", INBOUND: "destination"}


class ProxyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the data path counts besides connections. None: there is nothing that counts it."""

    active_proxies: int | None = None
    """Pods being served."""
    pending_proxies: int | None = None
    """Pods that could not be served yet."""
    proxies_started: int | None = None
    proxies_stopped: int | None = None
    pool_connections: int | None = None
    """HBONE connections to other proxies."""
    pool_streams: int | None = None
    """Tunnels in them."""
    peer_connections: int | None = None
    """HBONE connections accepted from other proxies."""
    peer_streams: int | None = None
    handshakes_failed: Mapping[tuple[str, str], int] | None = None
    """By direction and reason."""
    refused: Mapping[str, int] | None = None
    """Connections refused before a decision, by reason."""
    dials_failed: Mapping[str, int] | None = None
    """By name of the errno."""
    reset: int | None = None
    """Established connections that ended by a reset or an error."""
    crl_rejections: Mapping[str, int] | None = None
    """Peers refused because a CRL lists them, by direction."""
    certificates: Mapping[str, int] | None = None
    """Identities by the state of their certificate."""
    mesh: Mapping[str, int] | None = None
    """Number of workloads, services and policies known."""


class Metrics:
    """Renders a scrape."""

    def __init__(
        self,
        telemetry: Telemetry,
        figures: Callable[[], ProxyFigures],
        *,
        lag: LoopLag | None = None,
        writer: LineWriter | None = None,
    ) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._telemetry = telemetry
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Proxy(telemetry, figures, lag, writer))
        # apart, for a thread: counting descriptors takes long when there are many
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)

    def routes(self) -> Routes:
        """What the metrics port answers."""
        return Routes({("GET", "/metrics"): self.answer, ("GET", "/stats/prometheus"): self.answer})

    def answer(self, request: Request) -> Response:
        """A scrape in the format the client accepts, text without one."""
        openmetrics = "application/openmetrics-text" in request.header("accept")
        return Response(
            content_type=OPENMETRICS_TYPE if openmetrics else TEXT_TYPE,
            body=self.scrape(openmetrics=openmetrics),
            compress=True,
        )

    async def scrape(self, *, openmetrics: bool) -> AsyncIterator[bytes]:
        """The text of all metrics; the loop runs between two pieces."""
        yield await asyncio.to_thread(_rendered, self._process, openmetrics)
        yield _rendered(self._registry, openmetrics)
        for _ in self._telemetry.count_live():
            await asyncio.sleep(0)
        for piece in self._telemetry.series.text(openmetrics=openmetrics):
            yield piece
            await asyncio.sleep(0)
        yield _EOF


def _rendered(registry: CollectorRegistry, openmetrics: bool) -> bytes:
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics_exposition

    if openmetrics:
        text: bytes = openmetrics_exposition.generate_latest(registry)  # type: ignore[no-untyped-call]
        return text.removesuffix(_EOF)
    return exposition.generate_latest(registry)


class _Proxy:
    """A collector of prometheus-client over what the process knows now."""

    def __init__(
        self,
        telemetry: Telemetry,
        figures: Callable[[], ProxyFigures],
        lag: LoopLag | None,
        writer: LineWriter | None,
    ) -> None:
        self._telemetry = telemetry
        self._figures = figures
        self._lag = lag
        self._writer = writer

    def collect(self) -> Iterator[Metric]:
        """Every family that has a value."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        build = GaugeMetricFamily(
            "istio_build", "Build of the program", labels=["component", "tag"]
        )
        build.add_metric(["ztunnel", __version__], 1)
        yield build
        telemetry, figures = self._telemetry, self._figures()
        sockets = GaugeMetricFamily(
            "istio_tcp_sockets_open", "Accepted sockets open now (unstable)", labels=["reporter"]
        )
        # a connection of another proxy is one socket, however many tunnels are in it
        sockets.add_metric(["source"], telemetry.sockets[OUTBOUND])
        sockets.add_metric(
            ["destination"], telemetry.sockets[INBOUND] + (figures.peer_connections or 0)
        )
        yield sockets
        for field, name, help in _GAUGES:
            value = getattr(figures, field)
            if value is not None:
                yield GaugeMetricFamily(name, help, value=value)
        for field, name, help in _COUNTERS:
            value = getattr(figures, field)
            if value is not None:
                yield CounterMetricFamily(name, help, value=value)
        for field, name, label, help, is_gauge in _BY_LABEL:
            values = getattr(figures, field)
            if values is not None:
                make = GaugeMetricFamily if is_gauge else CounterMetricFamily
                family = make(name, help, labels=[label])
                for key, value in values.items():
                    family.add_metric([_REPORTERS[key] if label == "reporter" else key], value)
                yield family
        if figures.handshakes_failed is not None:
            failed = CounterMetricFamily(
                "nodenet_handshakes_failed",
                "TLS and HTTP/2 handshakes with other proxies that failed",
                labels=["direction", "reason"],
            )
            for (direction, reason), count in figures.handshakes_failed.items():
                failed.add_metric([direction, reason], count)
            yield failed
        early = CounterMetricFamily(
            "nodenet_connections_undecided",
            "Connections that ended before it was known where they go",
            labels=["direction"],
        )
        for direction, count in telemetry.failures.items():
            early.add_metric([direction], count)
        yield early
        yield GaugeMetricFamily(
            "nodenet_metric_series",
            "Label sets of the connection metrics",
            value=len(telemetry.series),
        )
        yield CounterMetricFamily(
            "nodenet_metric_series_overflow",
            "Connections counted without labels, because there were too many label sets",
            value=telemetry.series.overflowed,
        )
        if self._writer is not None:
            yield CounterMetricFamily(
                "nodenet_log_lines_dropped",
                "Log lines lost: nobody read them in time",
                value=self._writer.dropped,
            )
        if self._lag is not None:
            lag = HistogramMetricFamily(
                "nodenet_event_loop_lag_seconds", "How late timers of the event loop come"
            )
            lag.add_metric([], self._lag.buckets(), self._lag.sum)
            yield lag


_GAUGES: Final = (
    ("active_proxies", "workload_manager_active_proxy_count", "Pods being served"),
    ("pending_proxies", "workload_manager_pending_proxy_count", "Pods that wait to be served"),
    ("pool_connections", "nodenet_pool_connections", "HBONE connections to other proxies"),
    ("pool_streams", "nodenet_pool_streams", "Tunnels to other proxies"),
    ("peer_connections", "nodenet_peer_connections", "HBONE connections from other proxies"),
    ("peer_streams", "nodenet_peer_streams", "Tunnels from other proxies"),
)
_COUNTERS: Final = (
    ("proxies_started", "workload_manager_proxies_started", "Pods that began to be served"),
    ("proxies_stopped", "workload_manager_proxies_stopped", "Pods that ceased to be served"),
    ("reset", "nodenet_connections_reset", "Established connections that ended with an error"),
)
#: Field, name, label, help, whether it is a gauge.
_BY_LABEL: Final = (
    ("refused", "nodenet_connections_refused", "reason", "Connections refused undecided", False),
    ("dials_failed", "nodenet_dials_failed", "errno", "Dials that failed", False),
    (
        "crl_rejections",
        "istio_crl_policy_rejections",
        "reporter",
        "Peers refused because a CRL lists them (unstable)",
        False,
    ),
    ("certificates", "nodenet_certificates", "state", "Identities by state of certificate", True),
    ("mesh", "nodenet_mesh_resources", "kind", "Resources of the mesh that are known", True),
)
