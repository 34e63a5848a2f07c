"""What a server answers to probes, to Prometheus and to people."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from nodenet.agents.konnectivity.process import admin_listener
from nodenet.agents.konnectivity.server import Server
from nodenet.agents.konnectivity.server_admin import ServerAdmin
from nodenet.agents.konnectivity.server_config import Mode
from nodenet.agents.konnectivity.server_metrics import LeaseMetrics
from nodenet.agents.konnectivity.views import AgentsView, ServerTunnelRow, WhyView
from nodenet.httpd.client import Answer, fetch
from nodenet.httpd.server import HttpServer
from nodenet.konnectivity.packets import DialRequest, DialResponse
from nodenet.konnectivity.strategies import Strategy
from tests.unit.agents.konnectivity.agent_scene import run, until
from tests.unit.agents.konnectivity.server_wire import (
    connect_socket,
    fake_agent,
    nothing_left,
    proxy_stream,
    serving,
)

PREFIX = "konnectivity_network_proxy_server_"


class Asked:
    """A server and its surfaces, asked over their sockets."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder

    async def health(self, path: str) -> Answer:
        return await asyncio.to_thread(fetch, self.folder / "health", path)

    async def admin(self, path: str) -> Answer:
        return await asyncio.to_thread(fetch, self.folder / "admin", path)

    async def metrics(self) -> dict[str, float]:
        """By name and labels, as written."""
        text = (await self.health("/metrics")).body.decode()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


@contextlib.asynccontextmanager
async def asked(folder: Path, mode: Mode = Mode.HTTP_CONNECT, **more: Any) -> AsyncIterator[Asked]:
    async with serving(folder, mode, **more) as server:
        surface = ServerAdmin(server, LeaseMetrics())
        health = admin_listener(folder / "health", wanted=True)
        admin = admin_listener(folder / "admin", wanted=True)
        async with (
            HttpServer("health", surface.health_routes(), health),
            HttpServer("admin", surface.admin_routes(), admin),
        ):
            yield Asked(server, folder)
        surface.close()


def test_health_and_readiness_are_upstreams(tmp_path: Path) -> None:
    async def test() -> None:
        async with asked(tmp_path) as scene:
            alive = await scene.health("/healthz")
            assert (alive.status, alive.body) == (200, b"ok")
            for path in ("/readyz", "/ready"):
                answer = await scene.health(path)
                assert (answer.status, answer.body) == (500, b"no connection to any proxy agent")
            async with fake_agent(scene.server):
                answer = await scene.health("/readyz")
                assert (answer.status, answer.body) == (200, b"ok")
                assert b"1 connected" in (await scene.health("/readyz?verbose")).body
                scene.server.stop_accepting()
                assert (await scene.health("/readyz")).status == 500

    run(test())


def test_every_gauge_is_there_as_0_from_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with asked(tmp_path, strategies=tuple(Strategy)) as scene:
            found = await scene.metrics()
            for name in (
                "ready_backend_connections",
                'ready_backends{proxy_strategy="default"}',
                'ready_backends{proxy_strategy="destHost"}',
                'ready_backends{proxy_strategy="defaultRoute"}',
                "pending_backend_dials",
                "established_connections",
                "http_connections",
                'grpc_connections{service_method="Proxy"}',
                'grpc_connections{service_method="Connect"}',
                'full_receive_channels{service_method="Proxy"}',
            ):
                assert found[PREFIX + name] == 0, name
            assert found["process_open_fds"] > 0 and found["process_resident_memory_bytes"] > 0

    run(test())


def test_the_texts_that_upstreams_tests_compare(tmp_path: Path) -> None:
    async def test() -> None:
        async with asked(tmp_path) as scene:
            text = (await scene.health("/metrics")).body.decode()
            for line in (
                "# HELP konnectivity_network_proxy_server_dial_failure_count Number of dial "
                "failures observed. Multiple failures can occur for a single dial request.",
                "# TYPE konnectivity_network_proxy_server_dial_failure_count counter",
                "# HELP konnectivity_network_proxy_server_pending_backend_dials Current number of "
                "pending backend dial requests",
                "# HELP konnectivity_network_proxy_server_ready_backends Number of konnectivity "
                "agent connected to the proxy server",
                "# HELP konnectivity_network_proxy_server_established_connections Current number "
                "of established end-to-end connections (post-dial).",
            ):
                assert line in text.splitlines()
            assert list(text_string_to_metric_families(text)), "Prometheus reads it"

    run(test())


def test_what_happens_is_counted_and_gauges_return_to_0(tmp_path: Path) -> None:
    async def test() -> None:
        async with asked(tmp_path) as scene, fake_agent(scene.server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                asked_for = await agent.next()
                assert isinstance(asked_for, DialRequest)
                found = await scene.metrics()
                assert found[PREFIX + "pending_backend_dials"] == 1
                assert found[PREFIX + "http_connections"] == 1
                agent.send(DialResponse("", 1, asked_for.random))
                await client.established()
                found = await scene.metrics()
                assert found[PREFIX + "established_connections"] == 1
                assert found[PREFIX + "dial_duration_seconds_count"] == 1
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.next()  # CLOSE_REQ of the first
                asked_for = await agent.next()
                assert isinstance(asked_for, DialRequest)
                agent.send(DialResponse("connection refused", 0, asked_for.random))
                await client.rest()
            await nothing_left(scene.server)
            found = await scene.metrics()
            assert found[PREFIX + 'dial_failure_count{reason="error_response"}'] == 1
            sent = PREFIX + 'stream_packets_total{segment="to_agent",packet_type="DIAL_REQ"}'
            assert found[sent] == 2
            for name in ("pending_backend_dials", "established_connections", "http_connections"):
                assert found[PREFIX + name] == 0

    run(test())


def test_agents_and_tunnels_are_shown(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            asked(tmp_path, Mode.GRPC) as scene,
            fake_agent(scene.server, "a1", identifiers="host=node1&ipv4=10.0.0.1") as agent,
            proxy_stream(tmp_path / "f") as client,
        ):
            client.send(DialRequest("tcp", "10.0.0.1:80", 5))
            await agent.accept_dial(7)
            await client.next()
            raw = (await scene.admin("/v1/agents")).body
            view = msgspec.json.decode(raw, type=AgentsView)
            (row,) = view.agents
            assert view.ready and view.server_id == "s1" and view.strategies == ["default"]
            assert (row.agent_id, row.node, row.conns, row.dials) == ("a1", "node1", 1, 1)
            assert row.identifiers == "host=node1,ipv4=10.0.0.1" and row.dial_ms_p50 is not None
            raw = (await scene.admin("/v1/connections")).body
            (tunnel,) = msgspec.json.decode(raw, type=list[ServerTunnelRow])
            assert (tunnel.connect_id, tunnel.mode, tunnel.state) == (7, "grpc", "open")

    run(test())


def test_an_error_has_the_same_time_whenever_it_is_asked_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            asked(tmp_path, Mode.GRPC) as scene,
            fake_agent(scene.server, "a1") as agent,
            proxy_stream(tmp_path / "f") as client,
        ):
            client.send(DialRequest("tcp", "10.0.0.1:80", 5))
            dial = await agent.next()
            assert isinstance(dial, DialRequest)
            agent.send(DialResponse("connection refused", 0, dial.random))
            await client.next()
            seen = set()
            for _ in range(5):
                raw = (await scene.admin("/v1/agents")).body
                (row,) = msgspec.json.decode(raw, type=AgentsView).agents
                assert row.last_error == "connection refused"
                seen.add(row.last_error_at)
            assert len(seen) == 1 and None not in seen

    run(test())


def test_why_an_agent_would_be_taken(tmp_path: Path) -> None:
    async def test() -> None:
        strategies = (Strategy.DEST_HOST, Strategy.DEFAULT_ROUTE)
        async with (
            asked(tmp_path, strategies=strategies) as scene,
            fake_agent(scene.server, "a1", identifiers="host=node1"),
        ):

            async def why(host: str) -> WhyView:
                raw = (await scene.admin(f"/v1/why?host={host}")).body
                return msgspec.json.decode(raw, type=WhyView)

            found = await why("node1:10250")
            assert found.ok and found.candidates == ["a1"] and found.host == "node1"
            assert found.result == "agent a1, by destHost"
            found = await why("node2")
            assert not found.ok and found.result == "no agent: No agent available"
            assert [step.fired for step in found.steps] == [False, False]
            assert (await scene.admin("/v1/why")).status == 400

    run(test())


def test_profiles_are_served_only_when_asked_for(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "1").mkdir()
        (tmp_path / "2").mkdir()
        async with asked(tmp_path / "1") as scene:
            assert (await scene.admin("/debug/pprof")).status == 404
        async with asked(tmp_path / "2", profiling=True) as scene:
            stacks = (await scene.admin("/debug/pprof/goroutine")).text
            assert "thread MainThread" in stacks and "\ntask " in stacks
            profile = await scene.admin("/debug/pprof/profile?seconds=0.1")
            assert profile.status == 200 and profile.body[:2] == b"\x1f\x8b"
            assert (await scene.admin("/debug/pprof/profile?seconds=x")).status == 400

    run(test())


def test_a_scrape_while_tunnels_come_and_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with asked(tmp_path) as scene, fake_agent(scene.server) as agent:
            for number in range(1, 6):
                async with connect_socket(tmp_path / "f") as client:
                    await client.ask()
                    while not isinstance(found := await agent.next(), DialRequest):
                        pass
                    agent.send(DialResponse("", number, found.random))
                    await client.established()
                    await scene.metrics()
            await until(lambda: not scene.server.core.established, "all are closed")

    run(test())
