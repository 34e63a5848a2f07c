"""Servers that come and go, counted by their leases: whole servers, a whole agent, one API."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nodenet.agents.konnectivity import agent, agent_config, agent_leases, server_leases
from nodenet.agents.konnectivity.process import StopSignals
from nodenet.httpd.client import fetch
from tests.interop.certificates import Certificates
from tests.interop.peers import free_ports
from tests.unit.agents.konnectivity.agent_scene import run, until
from tests.unit.agents.konnectivity.test_server_process import Running
from tests.unit.kube.fake_api import FakeApi, fake_api


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The addresses of localhost; everything of leases is quick."""
    found = ["127.0.0.1"]

    def look_up(_host: str, port: int, *_rest: int) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(server_leases, "RENEW_SECONDS", 0.1)
    monkeypatch.setattr(agent_leases, "LIST_SECONDS", 0.05)
    yield found


class Cluster:
    """Servers at the addresses of one name, each with its lease."""

    def __init__(self, folder: Path, certs: Certificates, api: FakeApi, hosts: list[str]) -> None:
        self.folder, self.certs, self.hosts = folder, certs, hosts
        self.kubeconfig = api.kubeconfig(folder)
        (self.port,) = free_ports(1)
        self.stack = AsyncExitStack()
        self.running: dict[int, tuple[Running, asyncio.Task[int]]] = {}

    async def grow(self, number: int) -> None:
        """One more server."""
        folder = self.folder / str(number)
        folder.mkdir(exist_ok=True)
        host = f"127.0.0.{number}"
        one = Running(
            folder,
            self.certs,
            f"--server-id=s{number}",
            f"--agent-bind-address={host}",
            f"--agent-port={self.port}",
            f"--cluster-ca-cert={self.certs.ca}",
            f"--kubeconfig={self.kubeconfig}",
            "--enable-lease-controller",
            "--graceful-shutdown-timeout=0",
        )
        self.running[number] = one, await self.stack.enter_async_context(one())
        if host not in self.hosts:
            self.hosts.append(host)

    async def shrink(self, number: int) -> None:
        """A server is told to end."""
        one, task = self.running.pop(number)
        one.stop.request()
        assert await task == 0
        self.hosts.remove(f"127.0.0.{number}")


def test_the_count_of_servers_grows_and_shrinks(
    tmp_path: Path, certs: Certificates, hosts: list[str]
) -> None:
    async def test() -> None:
        health, admin = free_ports(2)
        async with fake_api() as api:
            cluster = Cluster(tmp_path, certs, api, hosts)
            async with cluster.stack, asyncio.TaskGroup() as tasks:
                await cluster.grow(1)
                config = agent_config.load(
                    [
                        f"--ca-cert={certs.ca}",
                        f"--agent-cert={certs.client.cert}",
                        f"--agent-key={certs.client.key}",
                        "--proxy-server-host=localhost",
                        f"--proxy-server-port={cluster.port}",
                        f"--health-server-port={health}",
                        f"--admin-server-port={admin}",
                        "--sync-interval=20ms",
                        "--sync-interval-cap=50ms",
                        f"--kubeconfig={cluster.kubeconfig}",
                        "--count-server-leases",
                    ],
                    {},
                )
                stop, path = StopSignals(), tmp_path / "a"
                ready = io.StringIO()
                tasks.create_task(agent.serve(config, stop, path, environ={}, ready=ready))
                await until(lambda: bool(ready.getvalue()), "the agent serves")

                async def shows(connected: int, known: int) -> None:
                    async with asyncio.timeout(30):
                        while True:
                            answer = await asyncio.to_thread(fetch, path, "/v1/servers")
                            view = json.loads(answer.body)
                            if (view["connected"], view["known"]) == (connected, known):
                                break
                            await asyncio.sleep(0.02)
                    assert view["count_from"] == "lease"

                await shows(1, 1)
                await cluster.grow(2)
                await cluster.grow(3)
                await shows(3, 3)
                # the servers tell those who ask nobody
                one, _ = cluster.running[1]
                async with asyncio.timeout(30):  # its own look at the leases
                    while json.loads((await one.get("/v1/agents"))[1])["server_count"] != 3:
                        await asyncio.sleep(0.02)
                await cluster.shrink(2)
                await shows(2, 2)
                await cluster.grow(4)
                await shows(3, 3)
                await cluster.shrink(1)
                await cluster.shrink(3)
                await shows(1, 1)
                servers = json.loads((await asyncio.to_thread(fetch, path, "/v1/servers")).body)
                assert [row["server_id"] for row in servers["servers"] if row["server_id"]] == [
                    "s4"
                ]
                stop.request()
                stop.request()
            assert not api.objects, "every server has taken its lease with it"

    run(test(), 100)
