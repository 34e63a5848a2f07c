"""What an agent answers: health and metrics for probes, its servers and tunnels for people.

Paths and bodies of health are upstream's (apiserver-network-proxy: cmd/agent/app/server.go); the
paths below ``/v1`` are read by `nodenet konnectivity show`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from nodenet.agents.konnectivity import agent_metrics
from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.agents.konnectivity.agent_metrics import LeaseCounts
from nodenet.agents.konnectivity.agent_remote import Sockets
from nodenet.agents.konnectivity.agent_set import ClientSet
from nodenet.agents.konnectivity.agent_stream import ServerStream
from nodenet.agents.konnectivity.pprof import Pprof
from nodenet.agents.konnectivity.views import AgentTunnelRow, ServerRow, ServersView
from nodenet.httpd.messages import Request, Response, json, text
from nodenet.httpd.routes import Routes
from nodenet.konnectivity.exposition import CONTENT_TYPE
from nodenet.times import rfc3339_ns


class AgentAdmin:
    """Answers from what the agent knows at the moment."""

    def __init__(
        self, config: AgentConfig, clients: ClientSet, sockets: Sockets, leases: LeaseCounts
    ) -> None:
        self._config = config
        self._clients = clients
        self._sockets = sockets
        self._leases = leases
        self._pprof = Pprof()

    def close(self) -> None:
        """Ends a profile that is being taken."""
        self._pprof.close()

    def health_routes(self) -> Routes:
        """The health port."""
        return Routes(
            {
                ("GET", "/healthz"): _ok,
                ("GET", "/readyz"): self._ready,
                ("GET", "/ready"): self._ready,
                ("GET", "/metrics"): self._metrics,
            }
        )

    def admin_routes(self) -> Routes:
        """The admin port and the Unix socket."""
        routes = Routes(
            {
                ("GET", "/metrics"): self._metrics_are_elsewhere,
                ("GET", "/v1/servers"): self._servers,
                ("GET", "/v1/connections"): self._tunnels,
            }
        )
        if self._config.profiling:
            self._pprof.add_to(routes)
        return routes

    def view(self) -> ServersView:
        """All servers, the addresses without one included."""
        clients = self._clients
        now = time.monotonic()
        rows = [self._row(stream, now) for stream in clients.streams]
        connected = {row.address for row in rows}
        for address, failure in clients.failures.items():
            if address not in connected:
                rows.append(
                    ServerRow(
                        server_id=None,
                        address=address,
                        state="failed",
                        conns=0,
                        dials=0,
                        failed=0,
                        age_s=None,
                        last_error=failure.text,
                        last_error_at=_moment(failure.at),
                        dial_ms_p50=None,
                        dial_ms_p99=None,
                        queue_bytes=0,
                    )
                )
        return ServersView(
            agent_id=self._config.agent_id,
            connected=len(clients.sync.servers),
            known=clients.sync.count,
            count_from=clients.sync.count_from,
            draining=clients.sync.draining,
            servers=rows,
        )

    def _row(self, stream: ServerStream, now: float) -> ServerRow:
        core = stream.core
        assert core is not None, "only connected streams are kept"
        failure = self._clients.failures.get(stream.address)
        dials = sorted(core.recent_dials)
        return ServerRow(
            server_id=stream.server_id,
            address=stream.address,
            state=stream.state.value,
            conns=len(core.tunnels),
            dials=core.dialled,
            failed=core.failed_dials,
            age_s=round(now - stream.connected_at, 3),
            last_error=failure.text if failure else None,
            last_error_at=_moment(failure.at) if failure else None,
            dial_ms_p50=_percentile(dials, 50),
            dial_ms_p99=_percentile(dials, 99),
            queue_bytes=core.held_bytes,
        )

    # -- health -----------------------------------------------------------------------------------

    def _ready(self, request: Request) -> Response:
        clients = self._clients
        if not clients.serves:
            reasons = "".join(f"  {f.text}\n" for f in list(clients.failures.values())[:8])
            body = "[+]ping ok\n[-]server-connected failed: no servers connected\n"
            return text(body + reasons, 503)
        if "verbose" in request.query:
            count = f"{len(clients.sync.servers)} of {clients.sync.count} servers"
            return text(f"[+]ping ok\n[+]server-connected ok\n  {count}\ncheck passed\n")
        return text("ok")

    async def _metrics(self, _request: Request) -> Response:
        process = await asyncio.to_thread(agent_metrics.render_process)
        body = agent_metrics.render(self._clients, self._sockets, self._leases) + process
        return Response(content_type=CONTENT_TYPE, body=body.encode(), compress=True)

    # -- admin ------------------------------------------------------------------------------------

    def _metrics_are_elsewhere(self, request: Request) -> Response:
        host = request.header("host")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        target = f"//{name or 'localhost'}:{self._config.health_port}/metrics"
        return Response(status=301, headers={"Location": target})

    def _servers(self, _request: Request) -> Response:
        return json(self.view())

    async def _tunnels(self, _request: Request) -> Response:
        now = time.monotonic()
        rows = []
        for stream in list(self._clients.streams):
            core = stream.core
            if core is None:
                continue
            for tunnel in [*core.tunnels.values(), *core.dials.values()]:
                half = tunnel.remote_ended or tunnel.server_ended
                state = "dialling" if not tunnel.up else "half-closed" if half else "open"
                rows.append(
                    AgentTunnelRow(
                        server_id=stream.server_id,
                        connect_id=tunnel.connect_id,
                        address=tunnel.address,
                        state=state,
                        age_s=round(now - tunnel.dialled_at, 3),
                        bytes_sent=tunnel.sent,
                        bytes_received=tunnel.received,
                        queue_bytes=tunnel.held_bytes,
                    )
                )
            await asyncio.sleep(0)
        return json(rows, compress=True)


def _ok(_request: Request) -> Response:
    return text("ok")


def _moment(seconds: float) -> str:
    return rfc3339_ns(int(seconds * 1e9))


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Milliseconds of the nearest rank; None of nothing."""
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * percent // 100))
    return round(ordered[rank - 1] * 1000, 3)
