"""The ports and the socket of a proxy, asked as others ask them."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nodenet.agents.ztunnel.admin_socket import admin_socket
from nodenet.agents.ztunnel.metrics import Metrics, ProxyFigures
from nodenet.agents.ztunnel.readiness import PROXY
from nodenet.agents.ztunnel.surfaces import Sockets, Surfaces, serving
from nodenet.httpd.client import Answer, NobodyThere, TcpAddress, fetch
from nodenet.httpd.sockets import PortInUse, SocketInUse
from nodenet.paths import Instance
from tests.unit.agents.ztunnel.admin_world import World


def _where(surfaces: Surfaces, name: str) -> TcpAddress | Path:
    address = surfaces.addresses()[name][-1]
    if address.startswith("/"):
        return Path(address)
    host, _, port = address.rpartition(":")
    return TcpAddress(host.replace("[::]", "127.0.0.1").replace("0.0.0.0", "127.0.0.1"), int(port))


async def ask(where: TcpAddress | Path, target: str, method: str = "GET") -> Answer:
    return await asyncio.to_thread(fetch, where, target, method=method)


def run(
    loop: asyncio.AbstractEventLoop,
    sockets: Sockets,
    use: Callable[[World, Surfaces], Awaitable[None]],
) -> None:
    async def main() -> None:
        world = World()
        metrics = Metrics(world.telemetry, ProxyFigures)
        async with serving(sockets, world.admin, metrics, world.readiness) as surfaces:
            await use(world, surfaces)

    loop.run_until_complete(main())


def test_each_port_answers_its_own(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    path = tmp_path / "ztunnel.sock"
    sockets = Sockets(path, admin="127.0.0.1:0", stats="*:0", readiness="*:0")

    async def use(world: World, surfaces: Surfaces) -> None:
        ready = _where(surfaces, "readiness")
        assert (await ask(ready, "/healthz/ready")).status == 500
        world.readiness.done(PROXY)
        assert (await ask(ready, "/healthz/ready")).body == b"ready\n"
        stats = _where(surfaces, "metrics")
        for target in ("/metrics", "/stats/prometheus"):
            assert b"istio_tcp_connections_opened_total{" in (await ask(stats, target)).body
        assert (await ask(stats, "/config_dump")).status == 404
        names = surfaces.addresses()
        assert sorted(names) == ["admin", "metrics", "readiness"]
        host, _, port = names["admin"][0].rpartition(":")
        over_tcp = TcpAddress(host, int(port))
        assert (await ask(over_tcp, "/config_dump?only=config")).status == 200
        # what TCP may not change the socket may
        target = "/v1/log-level?level=debug"
        assert (await ask(over_tcp, target, "POST")).status == 405
        assert (await ask(path, target, "POST")).status == 200
        assert str(path) in (await ask(path, "/v1/status")).text

    run(loop, sockets, use)
    assert not path.exists()


def test_nothing_but_the_socket(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    path = tmp_path / "ztunnel.sock"

    async def use(_world: World, surfaces: Surfaces) -> None:
        assert surfaces.addresses() == {"admin": [str(path)]}
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660

    run(loop, Sockets(path), use)


def test_when_the_drain_begins_nobody_is_let_in(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    path = tmp_path / "ztunnel.sock"

    async def use(_world: World, surfaces: Surfaces) -> None:
        await surfaces.close()
        with pytest.raises(NobodyThere):
            await ask(path, "/")

    run(loop, Sockets(path), use)


def test_a_taken_port_ends_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    first = Sockets(tmp_path / "a.sock", readiness="127.0.0.1:0")
    port = first.readiness[0].getsockname()[1]
    with pytest.raises(PortInUse) as caught:
        Sockets(tmp_path / "b.sock", admin="127.0.0.1:0", readiness=f"127.0.0.1:{port}")
    assert caught.value.line().endswith("; stop it or give another --readiness")
    assert f"pid {os.getpid()} " in caught.value.line()
    assert not (tmp_path / "b.sock").exists()
    with pytest.raises(SocketInUse):
        Sockets(tmp_path / "a.sock")
    first.close()
    assert not (tmp_path / "a.sock").exists()


def test_the_socket_has_the_nodes_name() -> None:
    instance = Instance("lab")
    assert admin_socket(Instance(), None) == Path("/run/nodenet/ztunnel.sock")
    assert admin_socket(instance, "n1") == Path("/run/nodenet-lab/ztunnel-n1.sock")
    assert admin_socket(instance, "a b").name == "ztunnel-a%20b.sock"
