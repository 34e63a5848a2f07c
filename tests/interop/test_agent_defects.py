"""Defects of upstream's agent that ours does not have behind an upstream server either.

`test_upstream_defects` has those of a whole pair of ours. The figures are upstream's, measured on
loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import signal
import socket
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from bench._tunnel_driver import connect
from nodenet.konnectivity.client import Mode, Stream, dial
from tests.interop.peers import Maker, ServerProcess, World, wait_for
from tests.interop.remotes import Deaf, Remote, Sink, echo

pytestmark = pytest.mark.timeout(1200)  # the first one may build the Go peers

T = TypeVar("T")
MIB = 1 << 20
MODES: list[Mode] = ["grpc", "http-connect"]
#: For an answer that does not wait for anybody who stalls.
PROMPT_SECONDS = 15.0
RESETS = "nodenet_konnectivity_agent_tunnel_resets_total"


def run(work: Coroutine[Any, Any, T], seconds: float = 120.0) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


async def tunnel(server: ServerProcess, address: str) -> Stream:
    return await dial(server.target, address, mode=server.mode, timeout=20)


async def prompt_echo(server: ServerProcess, address: str, times: int) -> None:
    """New tunnels work, and none takes long."""
    for number in range(times):
        async with asyncio.timeout(PROMPT_SECONDS), await tunnel(server, address) as stream:
            data = b"%d" % number * 1000
            await stream.write(data)
            got = b""
            while len(got) < len(data):
                got += await stream.read()
            assert got == data


@pytest.mark.go
@pytest.mark.parametrize("mode", MODES)
def test_stalled_remote(world: World, mode: Mode) -> None:
    """Upstream: the receive loop waits for it, with every other tunnel and every dial.

    There is no flow control a tunnel with this server: the stalled one is cut, the others go on.
    """
    server, agent = world.connected("go", "ours", mode=mode)

    async def work() -> None:
        deaf = Deaf()
        with Remote(deaf) as stalled, Remote(echo) as remote:
            async with asyncio.TaskGroup() as tasks:
                flooding = asyncio.to_thread(flood, server, stalled.address)
                tasks.create_task(flooding, name="flood")
                for _ in range(10):
                    await prompt_echo(server, remote.address, 3)
                    await asyncio.sleep(0.2)
                cut = asyncio.to_thread(
                    wait_for, lambda: agent.metric(RESETS, reason="stalled") == 1, "it is cut"
                )
                await cut
            deaf.go.set()
            await prompt_echo(server, remote.address, 3)

    run(work())
    assert agent.running


def flood(server: ServerProcess, address: str) -> None:
    """Writes as fast as it can until the tunnel is cut. In a loop of its own: it never rests."""

    async def work() -> None:
        stream = await tunnel(server, address)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(60):
                while True:
                    await stream.write(bytes(MIB))
        with contextlib.suppress(Exception):
            await stream.close()

    run(work())


@pytest.mark.go
def test_a_slow_remote_is_no_stalled_one(world: World) -> None:
    """It takes 60 MiB at its own pace, far more than its share, and gets every byte."""
    server, agent = world.connected("go", "ours", mode="http-connect")
    data = random.Random(5).randbytes(MIB)
    done: list[tuple[int, str]] = []

    def slow(sock: socket.socket) -> None:
        size, digest = 0, hashlib.sha256()
        while part := sock.recv(256 * 1024):
            size += len(part)
            digest.update(part)
            time.sleep(0.005)
        done.append((size, digest.hexdigest()))

    async def work(address: str) -> None:
        stream = await tunnel(server, address)
        for _ in range(60):
            await stream.write(data)
        await stream.close()

    with Remote(slow) as remote:
        run(work(remote.address))
        wait_for(lambda: bool(done), "the remote has read to the end", 60)
    assert done == [(60 * MIB, hashlib.sha256(data * 60).hexdigest())]
    assert agent.metric(RESETS) == 0


@pytest.mark.go
@pytest.mark.parametrize("mode", MODES)
def test_write_then_close(world: World, mode: Mode) -> None:
    """Upstream: of 50 uploads of 1 MiB 12 arrived whole, the worst had 504,064 bytes."""
    server, _ = world.connected("go", "ours", mode=mode)
    data, sink = random.Random(3).randbytes(MIB), Sink()

    async def upload(address: str) -> None:
        stream = await tunnel(server, address)
        await stream.write(data)
        await stream.close()

    async def work(address: str) -> None:
        for _ in range(10):
            await asyncio.gather(*(upload(address) for _ in range(5)))

    with Remote(sink) as remote:
        run(work(remote.address))
        assert sink.wait(50) == [(MIB, hashlib.sha256(data).hexdigest())] * 50


@pytest.mark.parametrize(
    "maker", ["ours", pytest.param("go", marks=pytest.mark.go)], ids=lambda m: f"{m}-server"
)
def test_an_agent_that_is_told_to_end_drains_and_ends(world: World, maker: Maker) -> None:
    """Upstream's agent stays until it is killed, and DRAIN is not said on an idle stream."""
    server = world.server(maker, mode="grpc")
    leaving = world.agent("ours", server, agent_id="leaving")
    wait_for(lambda: server.ready, "connected")

    async def work(address: str) -> None:
        stream = await tunnel(server, address)
        await stream.write(b"before")
        assert await stream.read() == b"before"
        leaving.signal(signal.SIGTERM)
        world.agent("ours", server, agent_id="staying")
        backends = "konnectivity_network_proxy_server_ready_backends"
        await asyncio.to_thread(
            wait_for, lambda: server.metric(backends, proxy_strategy="default") == 2, "two agents"
        )
        for _ in range(10):
            await prompt_echo(server, address, 1)
        await stream.write(b"after")
        assert await stream.read() == b"after"
        await asyncio.sleep(1.5)
        assert leaving.running, "a tunnel is open"
        await stream.close()

    with Remote(echo) as remote:
        run(work(remote.address))
        assert leaving.wait() == 0


@pytest.mark.parametrize(
    "maker", ["ours", pytest.param("go", marks=pytest.mark.go)], ids=lambda m: f"{m}-server"
)
def test_a_server_that_is_killed_with_1000_tunnels(world: World, maker: Maker) -> None:
    """Every remote is reset, nothing is left, and the agent is back soon after the server."""
    server = world.server(maker, mode="http-connect")
    agent = world.agent("ours", server)
    wait_for(lambda: server.ready, "connected")
    path = server.target.path
    assert path is not None
    gauge = "konnectivity_network_proxy_agent_open_endpoint_connections"
    fds = agent.metric("process_open_fds")
    with Remote(echo) as remote, contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(contextlib.closing(connect(path, remote.address)))
        assert agent.metric(gauge) == 1000
        server.kill()
        wait_for(lambda: agent.metric(gauge) == 0, f"{gauge} is 0")
        wait_for(lambda: remote.open == 0, "every remote has heard of it")
        assert agent.get("/readyz")[0] == 503
        server.start()
        wait_for(lambda: server.ready, "connected anew")
        with connect(path, remote.address) as sock:
            sock.sendall(b"works")
            assert sock.recv(5) == b"works"
    wait_for(lambda: agent.metric("process_open_fds") <= fds, "no descriptor is left")
