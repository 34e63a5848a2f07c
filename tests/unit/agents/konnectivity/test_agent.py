"""A whole agent in this process: its ports, its answers, its end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodenet.agents.konnectivity import agent_set
from nodenet.agents.konnectivity.agent import serve
from nodenet.agents.konnectivity.process import StopSignals
from nodenet.httpd import client
from nodenet.konnectivity.packets import Drain
from nodenet.konnectivity.tls_files import TlsUnusable
from tests.interop.certificates import Certificates
from tests.interop.peers import free_ports
from tests.unit.agents.konnectivity.agent_scene import FakeServer, config_for, run, until


class Whole:
    """An agent that serves."""

    def __init__(self, health: int, admin: int, socket: Path, stop: StopSignals) -> None:
        self.health = health
        self.admin = admin
        self.socket = socket
        self.stop = stop
        self.ended = asyncio.Event()

    async def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        """Status and text of a path of the health port."""
        url = f"http://127.0.0.1:{port or self.health}{path}"
        return await asyncio.to_thread(_get, url)

    async def ask(self, path: str) -> object:
        """JSON from the Unix socket."""
        answer = await asyncio.to_thread(client.fetch, self.socket, path)
        assert answer.status == 200
        return json.loads(answer.body)


def address_of(server: asyncio.Server) -> str:
    """Where it listens."""
    host, port = server.sockets[0].getsockname()[:2]
    return f"{host}:{port}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object, **_more: object) -> None:
        return None


def _get(url: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get("Location") or error.read().decode()


@contextlib.asynccontextmanager
async def whole(
    certs: Certificates, folder: Path, server: FakeServer, *flags: str
) -> AsyncIterator[Whole]:
    health, admin = free_ports(2)
    config = config_for(
        certs,
        server.port,
        f"--health-server-port={health}",
        f"--admin-server-port={admin}",
        "--health-server-host=127.0.0.1",
        f"--admin-socket={folder}/a",
        *flags,
    )
    made = Whole(health, admin, folder / "a", StopSignals())

    async def work() -> None:
        await serve(config, made.stop, folder / "a", environ={}, ready=io.StringIO())
        made.ended.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work(), name="agent")
        await until(lambda: (folder / "a").exists() or made.ended.is_set(), "serving")
        yield made
        made.stop.request()
        made.stop.request()


def test_health_and_readiness(certs: Certificates, tmp_path: Path) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        server.silent = True
        await server.start(certs)
        async with whole(certs, tmp_path, server) as agent:
            assert await agent.get("/healthz") == (200, "ok")
            for path in ("/readyz", "/ready"):
                status, body = await agent.get(path)
                assert status == 503
                assert body.splitlines()[:2] == [
                    "[+]ping ok",
                    "[-]server-connected failed: no servers connected",
                ]
            server.silent = False
            await server.stop()
            await server.start(certs, server.port)
            while (await agent.get("/readyz"))[0] != 200:
                await asyncio.sleep(0.02)
            assert await agent.get("/readyz") == (200, "ok")
            verbose = (await agent.get("/readyz?verbose"))[1]
            # upstream's three lines, ours between them
            assert verbose.splitlines() == [
                "[+]ping ok",
                "[+]server-connected ok",
                "  1 of 1 servers",
                "check passed",
            ]
        await server.stop()

    run(work())


def test_an_age_is_not_moved_by_a_clock_that_jumps(
    certs: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        async with whole(certs, tmp_path, server) as agent:
            await until(lambda: bool(server.open), "connected")
            real = time.time
            for jump in (-3600.0, 3600.0):
                monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
                found = json.dumps(await agent.ask("/v1/servers"))
                age = float(found.partition('"age_s": ')[2].partition(",")[0])
                assert 0 <= age < 60
        await server.stop()

    run(work())


def test_an_agent_of_servers_that_go_away_is_not_ready(certs: Certificates, tmp_path: Path) -> None:
    """Its tunnels go on, but nobody will dial here."""

    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        remote = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with whole(certs, tmp_path, server) as agent:
            await until(lambda: bool(server.open), "connected")
            await server.open[0].connect(address_of(remote))
            assert (await agent.get("/readyz"))[0] == 200
            server.silent = True
            server.protocols[0].connection.drain()
            while (await agent.get("/readyz"))[0] != 503:
                await asyncio.sleep(0.02)
            assert server.open, "the tunnel is there"
            assert '"state":"draining"' in json.dumps(
                await agent.ask("/v1/servers"), separators=(",", ":")
            )
        remote.close()
        await server.stop()

    run(work())


def test_every_gauge_is_there_from_the_start(certs: Certificates, tmp_path: Path) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        await server.stop()
        async with whole(certs, tmp_path, server) as agent:
            lines = (await agent.get("/metrics"))[1].splitlines()
            prefix = "konnectivity_network_proxy_agent_"
            assert f"{prefix}open_server_connections 0" in lines
            assert f"{prefix}open_endpoint_connections 0" in lines
            assert f"{prefix}known_server_count 1" in lines
            for name in (
                "dial_duration_seconds",
                "endpoint_dial_failure_total",
                "lease_lists_total",
            ):
                assert any(line.startswith(f"# TYPE {prefix}{name} ") for line in lines)
            assert any(line.startswith("process_open_fds ") for line in lines)

    run(work())


def test_metrics_of_the_admin_port_are_at_the_health_port(
    certs: Certificates, tmp_path: Path
) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        async with whole(certs, tmp_path, server) as agent:
            where = f"//127.0.0.1:{agent.health}/metrics"
            assert await agent.get("/metrics", agent.admin) == (301, where)
            assert (await agent.get("/debug/pprof/", agent.admin))[0] == 404
        await server.stop()

    run(work())


def test_profiles_when_asked_for(certs: Certificates, tmp_path: Path) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        async with whole(certs, tmp_path, server, "--enable-profiling") as agent:
            assert (await agent.get("/debug/pprof/", agent.admin))[0] == 200
            assert "task client set" in (await agent.get("/debug/pprof/goroutine", agent.admin))[1]
            assert (await agent.get("/debug/pprof/profile?seconds=x", agent.admin))[0] == 400
        await server.stop()

    run(work())


def test_servers_and_connections_are_told(certs: Certificates, tmp_path: Path) -> None:
    async def work() -> None:
        server = FakeServer("s1", count=2)
        await server.start(certs)
        async with whole(certs, tmp_path, server) as agent:
            await until(lambda: bool(server.open), "connected")
            listener = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            address = address_of(listener)
            tunnel = await server.streams[0].connect(address)
            view = await agent.ask("/v1/servers")
            assert isinstance(view, dict)
            assert (view["role"], view["agent_id"]) == ("agent", "agent-1")
            assert (view["connected"], view["known"], view["count_from"]) == (1, 2, "server")
            (row,) = [row for row in view["servers"] if row["server_id"] == "s1"]
            assert (row["state"], row["conns"], row["dials"]) == ("ready", 1, 1)
            assert row["dial_ms_p99"] >= 0 and row["queue_bytes"] == 0
            rows = await agent.ask("/v1/connections")
            assert isinstance(rows, list)
            assert [(r["connect_id"], r["address"], r["state"]) for r in rows] == [
                (tunnel, address, "open")
            ]
            listener.close()
        await server.stop()

    run(work())


def test_a_drain_lets_tunnels_end_and_then_the_agent_ends(
    certs: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's agent stays until it is killed."""
    monkeypatch.setattr(agent_set, "QUIET_SECONDS", 0.2)

    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        async with whole(certs, tmp_path, server) as agent:
            await until(lambda: bool(server.open), "connected")
            stream = server.streams[0]
            listener = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            tunnel = await stream.connect(address_of(listener))
            agent.stop.request()
            assert await stream.next() == Drain()
            assert (await agent.get("/healthz"))[0] == 200, "still asked while it drains"
            await asyncio.sleep(0.4)
            assert not agent.ended.is_set(), "a tunnel is open"
            stream.close(tunnel)
            async with asyncio.timeout(30):
                await agent.ended.wait()
            listener.close()
        await server.stop()

    run(work())


def test_a_drain_has_a_deadline_and_a_second_signal_none(
    certs: Certificates, tmp_path: Path
) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        listener = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        address = address_of(listener)
        for flag, twice in (("--drain-timeout=300ms", False), ("--drain-timeout=1h", True)):
            server.streams.clear()
            async with whole(certs, tmp_path, server, flag) as agent:
                await until(lambda: bool(server.open), "connected")
                await server.streams[0].connect(address)
                agent.stop.request()
                if twice:
                    agent.stop.request()
                async with asyncio.timeout(30):
                    await agent.ended.wait()
        listener.close()
        await server.stop()

    run(work())


@pytest.mark.parametrize("flag", ["--ca-cert", "--agent-key"])
def test_files_of_no_use_end_the_start(certs: Certificates, tmp_path: Path, flag: str) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("no PEM")

    async def work() -> None:
        config = config_for(certs, 8091, f"{flag}={rubbish}")
        ready = io.StringIO()
        with pytest.raises(TlsUnusable, match=f"cannot use {rubbish}: "):
            await serve(config, StopSignals(), tmp_path / "a", environ={}, ready=ready)
        assert not ready.getvalue() and not (tmp_path / "a").exists()

    run(work())
