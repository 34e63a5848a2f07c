"""The defects measured in the Go pair, each as a test named after it that passes on ours.

Ours with ours, and where the server alone can mend it, ours with the real agent too.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import signal
import socket
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from nodenet.konnectivity.client import DialFailed, Mode, Stream, TunnelLost, dial
from tests.interop.peers import AgentProcess, Maker, ServerProcess, World, wait_for
from tests.interop.remotes import (
    Deaf,
    Remote,
    Sink,
    banner,
    black_hole,
    digest_server,
    echo,
)

MIB: Final = 1 << 20
MODES: Final = ("grpc", "http-connect")
#: A dial that nobody is in the way of takes a millisecond; machines that run several suites are
#: slow. Upstream's is not answered at all.
AT_ONCE: Final = 10.0
ESTABLISHED: Final = "konnectivity_network_proxy_server_established_connections"
PENDING: Final = "konnectivity_network_proxy_server_pending_backend_dials"

#: The real one needs Go.
AGENTS: Final = ["ours", pytest.param("go", marks=pytest.mark.go)]

pytestmark = pytest.mark.timeout(1200)  # the first one may build the Go peers

T = TypeVar("T")
Pair = tuple[ServerProcess, AgentProcess]


def run(work: Coroutine[Any, Any, T], seconds: float = 100.0) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.param
    return found


@pytest.fixture
def pair(world: World, mode: Mode) -> Pair:
    """Ours with ours."""
    return world.connected("ours", "ours", mode=mode)


@pytest.fixture(params=AGENTS)
def any_agent(request: pytest.FixtureRequest, world: World, mode: Mode) -> Pair:
    """Our server with either agent."""
    agent: Maker = request.param
    return world.connected("ours", agent, mode=mode)


def opened(server: ServerProcess, address: str) -> Coroutine[Any, Any, Stream]:
    return dial(server.target, address, mode=server.mode, timeout=20)


async def echoes(stream: Stream, data: bytes = b"ping") -> None:
    """Sends and gets back."""
    await stream.write(data)
    got = b""
    while len(got) < len(data):
        part = await stream.read()
        assert part, "the tunnel ended"
        got += part
    assert got == data


@contextlib.contextmanager
def endless() -> Iterator[Remote]:
    """A remote that sends for ever."""

    def serve(sock: socket.socket) -> None:
        block = bytes(256 << 10)
        while True:
            sock.sendall(block)

    with Remote(serve) as remote:
        yield remote


def test_stalled_frontend(any_agent: Pair) -> None:
    """A client that does not read stops neither another tunnel nor a dial of the same agent."""
    server, _ = any_agent

    async def test(flood: str, other: str) -> None:
        async with await opened(server, other) as before, await opened(server, flood) as stalled:
            assert await stalled.read()
            await asyncio.sleep(0.5)  # everything in between fills up
            for _ in range(3):
                began = time.monotonic()
                async with await opened(server, other) as after:
                    await echoes(after)
                await echoes(before)
                assert time.monotonic() - began < AT_ONCE

    with endless() as flood, Remote(echo) as other:
        run(test(flood.address, other.address))


def test_stalled_remote(pair: Pair) -> None:
    """A remote that does not read stops neither another tunnel nor a dial of the same agent."""
    server, _ = pair

    async def test(deaf: str, other: str) -> None:
        async with await opened(server, other) as before, await opened(server, deaf) as stalled:
            async with asyncio.TaskGroup() as tasks:
                filling = tasks.create_task(_fill(stalled))
                await asyncio.sleep(0.5)
                assert not filling.done(), "it is stalled"
                for _ in range(3):
                    began = time.monotonic()
                    async with await opened(server, other) as after:
                        await echoes(after)
                    await echoes(before)
                    assert time.monotonic() - began < AT_ONCE
                filling.cancel()

    silent = Deaf()
    with Remote(silent) as deaf, Remote(echo) as other:
        run(test(deaf.address, other.address))
        silent.go.set()


async def _fill(stream: Stream) -> None:
    while True:
        await stream.write(bytes(MIB))


def test_write_then_close_delivers_200_of_200_uploads(pair: Pair) -> None:
    server, _ = pair
    data = random.Random(1).randbytes(MIB)

    async def upload(address: str, at_once: asyncio.Semaphore) -> None:
        async with at_once:
            stream = await opened(server, address)
            await stream.write(data)
            await stream.close()

    async def test(address: str) -> None:
        at_once = asyncio.Semaphore(8)
        await asyncio.gather(*(upload(address, at_once) for _ in range(200)))

    sink = Sink()
    with Remote(sink) as remote:
        run(test(remote.address))
        done = sink.wait(200)
    assert set(done) == {(MIB, hashlib.sha256(data).hexdigest())}


@pytest.mark.parametrize("agent", AGENTS)
def test_server_first_bytes_never_precede_the_200_in_2000_tunnels(
    world: World, agent: Maker
) -> None:
    server, _ = world.connected("ours", agent, mode="http-connect")
    assert server.target.path is not None
    with Remote(banner(b"SSH-2.0-x\r\n")) as remote:
        wanted = b"HTTP/1.1 200 Connection Established\r\n\r\nSSH-2.0-x\r\n"
        inversions = run(_inversions(server.target.path, remote.address, wanted, 2000))
    assert inversions == 0


async def _inversions(path: Path, address: str, wanted: bytes, count: int) -> int:
    at_once = asyncio.Semaphore(8)
    request = f"CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()

    async def one() -> bool:
        async with at_once:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(request)
            got = await reader.readexactly(len(wanted))
            writer.close()
            await writer.wait_closed()
            return got != wanted

    return sum(await asyncio.gather(*(one() for _ in range(count))))


def test_half_close_is_answered_200_of_200_times(pair: Pair) -> None:
    server, _ = pair
    data = random.Random(2).randbytes(20_000)
    digest = hashlib.sha256(data).hexdigest().encode()

    async def ask(address: str, at_once: asyncio.Semaphore) -> bytes:
        async with at_once, await opened(server, address) as stream:
            await stream.write(data)
            await stream.end()
            got = b""
            while part := await stream.read():
                got += part
            return got

    async def test(address: str) -> list[bytes]:
        at_once = asyncio.Semaphore(8)
        return await asyncio.gather(*(ask(address, at_once) for _ in range(200)))

    with Remote(digest_server) as remote:
        assert run(test(remote.address)) == [digest] * 200


@pytest.mark.parametrize("agent", AGENTS)
def test_graceful_drain_keeps_live_tunnels_to_the_deadline(
    world: World, mode: Mode, agent: Maker
) -> None:
    seconds = 5.0
    server = world.server("ours", f"--graceful-shutdown-timeout={seconds:g}s", mode=mode)
    world.agent(agent, server)
    wait_for(lambda: server.ready, "the agent is connected")

    async def test(address: str) -> float:
        async with await opened(server, address) as stream:
            await echoes(stream)
            server.signal(signal.SIGTERM)
            began = time.monotonic()
            with contextlib.suppress(TunnelLost, AssertionError):
                while True:
                    await echoes(stream)
                    await asyncio.sleep(0.05)
            return time.monotonic() - began

    with Remote(echo) as remote:
        lasted = run(test(remote.address))
    assert seconds - 0.5 < lasted < seconds + 20
    assert server.wait() == 0


def test_a_drain_ends_with_the_last_tunnel(world: World, mode: Mode) -> None:
    server = world.server("ours", "--graceful-shutdown-timeout=60s", mode=mode)
    world.agent("ours", server)
    wait_for(lambda: server.ready, "the agent is connected")

    async def test(address: str) -> None:
        async with await opened(server, address) as stream:
            server.signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            await echoes(stream)

    with Remote(echo) as remote:
        run(test(remote.address))
        assert server.wait(15) == 0


def test_agent_loss_answers_pending_dials(any_agent: Pair) -> None:
    """At once, and not after the client's own time-out."""
    server, agent = any_agent

    async def test(address: str) -> float:
        pending = asyncio.ensure_future(opened(server, address))
        try:
            await asyncio.to_thread(wait_for, lambda: server.metric(PENDING) == 1, "it is pending")
            began = time.monotonic()
            agent.signal(signal.SIGKILL)
            with pytest.raises(DialFailed):
                await pending
            return time.monotonic() - began
        finally:
            pending.cancel()

    with black_hole() as address:
        assert run(test(address)) < AT_ONCE
    wait_for(lambda: server.metric(PENDING) == 0, "none is pending")


def test_gauges_return_to_0(any_agent: Pair) -> None:
    """After dials that are cancelled, tunnels that are dropped, and an agent that is lost."""
    server, agent = any_agent

    async def cancelled(address: str) -> None:
        pending = asyncio.ensure_future(opened(server, address))
        await asyncio.sleep(0.2)
        pending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pending

    async def test(nowhere: str, address: str) -> None:
        await asyncio.gather(*(cancelled(nowhere) for _ in range(20)))
        streams = [await opened(server, address) for _ in range(20)]
        assert server.metric(ESTABLISHED) == 20
        for stream in streams[:10]:
            await stream.close()
        await asyncio.to_thread(wait_for, lambda: server.metric(ESTABLISHED) == 10, "half is gone")
        agent.signal(signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: server.metric(ESTABLISHED) == 0, "all are gone")
        for stream in streams[10:]:
            await stream.close()

    with black_hole() as nowhere, Remote(echo) as remote:
        run(test(nowhere, remote.address))
    wait_for(lambda: set(_gauges(server).values()) == {0.0}, f"0 is {_gauges(server)}")


def _gauges(server: ServerProcess) -> dict[str, float]:
    """Everything that counts what is there now."""
    prefix = "konnectivity_network_proxy_server_"
    names = ("http_connections", "grpc_connections", "ready_backends", "full_receive_channels")
    found = {name: server.metric(prefix + name) for name in names}
    return found | {name: server.metric(name) for name in (PENDING, ESTABLISHED)}


def test_a_client_that_hangs_up_cancels_its_dial(pair: Pair) -> None:
    """Upstream does not notice, and thousands of half-open tunnels pile up."""
    server, agent = pair
    dials = "nodenet_konnectivity_agent_pending_dials"

    async def test(address: str) -> None:
        pending = asyncio.ensure_future(opened(server, address))
        await asyncio.to_thread(wait_for, lambda: agent.metric(dials) == 1, "the agent dials")
        pending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pending
        await asyncio.to_thread(wait_for, lambda: agent.metric(dials) == 0, "it has given up", 3.0)

    with black_hole() as nowhere:
        run(test(nowhere))
