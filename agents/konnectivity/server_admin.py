"""What a server answers: health and metrics for probes, its agents and tunnels for people.

Paths and bodies of health are upstream's (apiserver-network-proxy: cmd/server/app/server.go); the
paths below ``/v1`` are read by `nodenet konnectivity show`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from nodenet.agents.konnectivity import server_metrics
from nodenet.agents.konnectivity.agent_metrics import render_process
from nodenet.agents.konnectivity.pprof import Pprof
from nodenet.agents.konnectivity.server import Server
from nodenet.agents.konnectivity.server_metrics import LeaseMetrics
from nodenet.agents.konnectivity.views import (
    AgentRow,
    AgentsView,
    ServerTunnelRow,
    WhyStep,
    WhyView,
)
from nodenet.httpd.messages import HttpError, Request, Response, json, text
from nodenet.httpd.routes import Routes
from nodenet.konnectivity.backend import Backend
from nodenet.konnectivity.exposition import CONTENT_TYPE
from nodenet.konnectivity.grpc_frontend import ProxyStream
from nodenet.konnectivity.identifiers import host_of
from nodenet.konnectivity.server_tunnel import State, Tunnel
from nodenet.konnectivity.strategies import NO_AGENT
from nodenet.times import DayTimes

#: Rows made before others get their turn.
_AT_ONCE: Final = 500


class ServerAdmin:
    """Answers from what the server knows at the moment."""

    def __init__(self, server: Server, leases: LeaseMetrics) -> None:
        self._server = server
        self._leases = leases
        self._pprof = Pprof()
        self._times = DayTimes()

    def close(self) -> None:
        """Ends a profile that is being taken."""
        self._pprof.close()

    def health_routes(self) -> Routes:
        """The health port."""
        return Routes(
            {
                ("GET", "/healthz"): lambda _: text("ok"),
                ("GET", "/readyz"): self._ready,
                ("GET", "/ready"): self._ready,
                ("GET", "/metrics"): self._metrics,
            }
        )

    def admin_routes(self) -> Routes:
        """The admin port and the Unix socket."""
        routes = Routes(
            {
                ("GET", "/metrics"): self._metrics,
                ("GET", "/v1/agents"): lambda _: json(self.view(), compress=True),
                ("GET", "/v1/connections"): self._connections,
                ("GET", "/v1/why"): self._why,
            }
        )
        if self._server.config.profiling:
            self._pprof.add_to(routes)
        return routes

    # -- health -----------------------------------------------------------------------------------

    def _ready(self, request: Request) -> Response:
        server = self._server
        if server.draining:
            return text("draining: no new connections are taken", 500)
        if not server.core.backends.ready():
            return text("no connection to any proxy agent", 500)
        if "verbose" in request.query:
            count = len(server.core.backends.storages[0])
            return text(f"[+]ping ok\n[+]agents ok: {count} connected\nreadyz check passed\n")
        return text("ok")

    async def _metrics(self, _request: Request) -> Response:
        process = await asyncio.to_thread(render_process)
        body = server_metrics.render(self._server, self._leases) + process
        return Response(content_type=CONTENT_TYPE, body=body.encode(), compress=True)

    # -- for people -------------------------------------------------------------------------------

    def view(self) -> AgentsView:
        """All agents' streams, in the order they came."""
        server, core = self._server, self._server.core
        now = server.loop.time()
        streams: dict[str, int] = {}
        for backend in core.backends:
            streams[backend.agent_id] = streams.get(backend.agent_id, 0) + 1
        return AgentsView(
            server_id=server.config.server_id,
            server_count=server.agents.server_count,
            strategies=[storage.strategy.value for storage in core.backends.storages],
            ready=core.backends.ready() and not server.draining,
            draining=server.draining,
            agents=[
                _agent_row(backend, streams[backend.agent_id], now, self._error_at(backend, now))
                for backend in core.backends
            ],
        )

    def _error_at(self, backend: Backend, now: float) -> str | None:
        if backend.last_error is None:
            return None
        return self._times.rfc3339(backend.last_error_at, now=now, wall=time.time())

    async def _connections(self, _request: Request) -> Response:
        now = self._server.loop.time()
        rows: list[ServerTunnelRow] = []
        for tunnel in list(self._server.core.tunnels()):
            rows.append(_tunnel_row(tunnel, now))
            if len(rows) % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return json(rows, compress=True)

    def _why(self, request: Request) -> Response:
        host = request.query.get("host", "")
        if not host:
            raise HttpError(400, "give ?host=HOST or ?host=HOST:PORT\n")
        return json(self.why(host))

    def why(self, address: str) -> WhyView:
        """Which agent would carry a dial to an address, or why none."""
        steps = self._server.core.backends.explain(address)
        fired = next((step for step in steps if step.fired), None)
        candidates = [] if fired is None else _choice(list(fired.candidates))
        if fired is None:
            result = f"no agent: {NO_AGENT}"
        elif len(candidates) == 1:
            result = f"agent {candidates[0]}, by {fired.strategy.value}"
        else:
            result = f"one of {len(candidates)} agents, by {fired.strategy.value}"
        return WhyView(
            ok=fired is not None,
            host=host_of(address),
            candidates=candidates,
            result=result,
            steps=[
                WhyStep(
                    strategy=step.strategy.value,
                    fired=step.fired,
                    why=step.why,
                    agents=list(dict.fromkeys(b.agent_id for b in step.candidates)),
                )
                for step in steps
            ],
        )


def _choice(candidates: list[Backend]) -> list[str]:
    """The agents one of which is taken: those that do not drain, when there are any."""
    usable = [b for b in candidates if not b.draining] or candidates
    return list(dict.fromkeys(backend.agent_id for backend in usable))


def _agent_row(backend: Backend, streams: int, now: float, error_at: str | None) -> AgentRow:
    found = backend.identifiers
    dials = sorted(backend.recent_dials)
    return AgentRow(
        agent_id=backend.agent_id,
        node=found.host[0] if found.host else None,
        address=backend.address,
        identifiers=found.text(),
        state="draining" if backend.draining else "ready",
        extensions=bool(backend.window),
        streams=streams,
        conns=len(backend.tunnels),
        pending=len(backend.dials),
        dials=backend.dialled,
        failed=backend.failed,
        age_s=round(now - backend.connected_at, 3),
        last_error=backend.last_error,
        last_error_at=error_at,
        dial_ms_p50=_percentile(dials, 50),
        dial_ms_p99=_percentile(dials, 99),
        queue_bytes=sum(tunnel.queue.size for tunnel in backend.tunnels.values()),
    )


def _tunnel_row(tunnel: Tunnel, now: float) -> ServerTunnelRow:
    frontend = tunnel.frontend
    half = tunnel.end is not None or tunnel.remote_ended
    pending = tunnel.state is State.PENDING
    grpc = isinstance(frontend, ProxyStream)
    return ServerTunnelRow(
        agent_id=tunnel.backend.agent_id,
        connect_id=tunnel.connect_id,
        address=tunnel.address,
        mode="closed" if frontend is None else "grpc" if grpc else "http-connect",
        state="dialling" if pending else "half-closed" if half else "open",
        age_s=round(now - tunnel.started_at, 3),
        bytes_sent=tunnel.sent,
        bytes_received=tunnel.received,
        queue_bytes=tunnel.queue.size + (frontend.backlog() if frontend is not None else 0),
    )


def _percentile(ordered: list[float], percent: int) -> float | None:
    """Milliseconds of the nearest rank; None of nothing."""
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * percent // 100))
    return round(ordered[rank - 1] * 1000, 3)
