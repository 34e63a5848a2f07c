"""The process: surfaces, the Kubernetes API, the wishes to end; our agent at the other side."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodenet.agents.konnectivity import agent_config, server_config, server_process
from nodenet.agents.konnectivity.process import StopSignals
from nodenet.errors import NodenetError
from nodenet.httpd.client import fetch
from nodenet.httpd.sockets import PortInUse
from nodenet.konnectivity.tls_files import TlsUnusable
from nodenet.kube.access import NoAccess
from tests.interop.certificates import Certificates
from tests.interop.peers import free_ports
from tests.unit.agents.konnectivity.agent_scene import agent, run, told, until
from tests.unit.agents.konnectivity.server_wire import connect_socket
from tests.unit.kube.fake_api import fake_api

ACCOUNT = "system:serviceaccount:kube-system:konnectivity-agent"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/konnectivity-proxy-server-s1"


class Running:
    """A server process in the test's loop."""

    def __init__(self, folder: Path, certs: Certificates, *flags: str) -> None:
        self.agent_port, self.health_port, self.admin_port = free_ports(3)
        self.folder = folder
        self.stop = StopSignals()
        self.ready = io.StringIO()
        self.config = server_config.load(
            [
                "--mode=http-connect",
                f"--uds-name={folder}/f",
                "--server-port=0",
                "--agent-bind-address=127.0.0.1",
                f"--agent-port={self.agent_port}",
                "--health-bind-address=127.0.0.1",
                f"--health-port={self.health_port}",
                f"--admin-port={self.admin_port}",
                f"--admin-socket={folder}/admin",
                f"--cluster-cert={certs.server.cert}",
                f"--cluster-key={certs.server.key}",
                "--server-id=s1",
                *flags,
            ],
            {},
        )

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[asyncio.Task[int]]:
        path = self.config.admin_socket
        assert path is not None
        work = server_process.serve(self.config, self.stop, path, ready=self.ready)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work)
            await until(lambda: bool(self.ready.getvalue()) or task.done(), "it is ready")
            try:
                yield task
            finally:
                self.stop.request()

    async def get(self, path: str) -> tuple[int, str]:
        answer = await asyncio.to_thread(fetch, self.folder / "admin", path)
        return answer.status, answer.text


def review(spec: dict[str, Any]) -> dict[str, Any]:
    """By the token's text: good, expired, or of another account."""
    if spec["token"] == "expired":
        return {"error": "[invalid bearer token, token has expired]"}
    name = ACCOUNT if spec["token"] == "good" else ACCOUNT.replace("konnectivity-agent", "default")
    return {"authenticated": True, "audiences": spec["audiences"], "user": {"username": name}}


def agent_of(running: Running, certs: Certificates, token: Path) -> agent_config.AgentConfig:
    return agent_config.load(
        [
            f"--ca-cert={certs.ca}",
            f"--proxy-server-port={running.agent_port}",
            "--sync-interval=20ms",
            "--sync-interval-cap=100ms",
            f"--service-account-token-path={token}",
        ],
        {},
    )


def test_tokens_and_leases_by_the_api(tmp_path: Path, certs: Certificates) -> None:
    async def test() -> None:
        async with fake_api(review=review) as api:
            running = Running(
                tmp_path,
                certs,
                "--agent-namespace=kube-system",
                "--agent-service-account=konnectivity-agent",
                "--authentication-audience=system:konnectivity-server",
                f"--kubeconfig={api.kubeconfig(tmp_path)}",
                "--enable-lease-controller",
            )
            async with running() as task:
                await until(lambda: LEASE in api.objects, "there is a lease")
                token = tmp_path / "token"
                token.write_text("expired")
                async with agent(agent_of(running, certs, token)) as clients:
                    await told(clients, "lookup failed: [invalid bearer token, token has expired]")
                    token.write_text("other")
                    await told(clients, 'incoming request from "default" service account')
                    assert (await running.get("/readyz"))[0] == 404, "that is the health port's"
                    token.write_text("good\n")
                    await until(lambda: len(clients.streams) == 1, "it is let in")
                    status, text = await running.get("/v1/agents")
                    assert status == 200 and '"ready":true' in text
                running.stop.request()
                assert await task == 0
            assert LEASE not in api.objects, "it was deleted"
            assert "READY konnectivity-server server-id=s1" in running.ready.getvalue()

    run(test())


def test_the_second_wish_to_end_cuts_a_drain(tmp_path: Path, certs: Certificates) -> None:
    async def test() -> None:
        token = tmp_path / "token"
        token.write_text("any")
        listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        running = Running(tmp_path, certs, "--graceful-shutdown-timeout=60s")
        async with (
            listener,
            running() as task,
            agent(agent_of(running, certs, token)) as clients,
        ):
            await until(lambda: bool(clients.streams), "it is connected")
            async with connect_socket(tmp_path / "f") as client:
                await client.ask(f"127.0.0.1:{port}")
                await client.established()
                running.stop.request()
                await asyncio.sleep(0.3)
                assert not task.done()
                running.stop.request()
                assert await task == 1

    run(test())


def test_what_cannot_be_served_is_said_before_anything_is(
    tmp_path: Path, certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def fails(running: Running, kind: type[NodenetError]) -> None:
        path = running.config.admin_socket
        assert path is not None
        with pytest.raises(kind):
            await server_process.serve(running.config, running.stop, path, ready=running.ready)
        assert not running.ready.getvalue() and not (tmp_path / "f").exists()

    async def test() -> None:
        await fails(Running(tmp_path, certs, "--enable-lease-controller"), NoAccess)
        running = Running(tmp_path, certs)
        listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", running.agent_port)
        async with listener:
            await fails(running, PortInUse)
        rubbish = tmp_path / "rubbish"
        rubbish.write_text("no PEM")
        flags = (f"--cluster-key={rubbish}",)
        await fails(Running(tmp_path, certs, *flags), TlsUnusable)

    run(test())
