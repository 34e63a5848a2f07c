"""What goes wrong in upstream's pair, measured there, and does not in ours.

Each test is named after the defect. The figures in the docstrings are upstream's, of
apiserver-network-proxy 4f8517c, on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from nodenet.konnectivity.client import DialFailed, Mode, Stream, dial
from tests.interop.peers import AgentProcess, Maker, ServerProcess, World, wait_for
from tests.interop.remotes import (
    Deaf,
    Remote,
    Sink,
    banner,
    black_hole,
    digest_server,
    echo,
    source,
)

pytestmark = pytest.mark.timeout(1200)  # the first one may build the Go peers

T = TypeVar("T")
Pair = tuple[ServerProcess, AgentProcess]
MIB = 1 << 20
MODES: list[Mode] = ["grpc", "http-connect"]
#: For an answer that does not wait for anybody who stalls.
PROMPT_SECONDS = 5.0
GAUGES = (
    "konnectivity_network_proxy_server_pending_backend_dials",
    "konnectivity_network_proxy_server_established_connections",
)


def run(work: Coroutine[Any, Any, T], seconds: float = 120.0) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


@pytest.fixture(params=MODES)
def ours(request: pytest.FixtureRequest, world: World) -> Iterator[Pair]:
    """Our server and our agent; at the end nothing may be left in their tables."""
    server, agent = world.connected("ours", "ours", mode=request.param)
    yield server, agent
    nothing_left(server, agent)


def returns_to_0(process: ServerProcess | AgentProcess, gauge: str) -> None:
    """Waits for it."""
    wait_for(lambda: process.metric(gauge) == 0, f"{gauge} is 0")


def nothing_left(server: ServerProcess, agent: AgentProcess) -> None:
    """Gauges return to 0."""
    for gauge in GAUGES:
        returns_to_0(server, gauge)
    name = "konnectivity_network_proxy_agent_open_endpoint_connections"
    returns_to_0(agent, name)


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


# -- stalls ---------------------------------------------------------------------------------------


async def beside_a_frontend_that_does_not_read(server: ServerProcess) -> None:
    with Remote(source(1 << 40)) as flood, Remote(echo) as remote:
        stalled = await asyncio.gather(*(tunnel(server, flood.address) for _ in range(3)))
        await asyncio.sleep(1.0)  # every buffer on the way is full then
        await prompt_echo(server, remote.address, 20)
        # what is read again goes on
        got = 0
        while got < 32 * MIB:
            got += len(await stalled[0].read(1 << 18))
        for stream in stalled:
            await stream.close()


def test_stalled_frontend(ours: Pair) -> None:
    """Upstream: a second dial is not answered in 8 s, nor while the first one does not read."""
    run(beside_a_frontend_that_does_not_read(ours[0]))


@pytest.mark.go
@pytest.mark.parametrize("mode", MODES)
def test_stalled_frontend_with_an_upstream_agent(world: World, mode: Mode) -> None:
    """There is no flow control a tunnel with it: the stalled one is cut, the others go on."""
    server, agent = world.connected("ours", "go", mode=mode)

    async def work() -> None:
        with Remote(source(1 << 40)) as flood, Remote(echo) as remote:
            stalled = await tunnel(server, flood.address)
            await asyncio.sleep(1.0)
            await prompt_echo(server, remote.address, 20)
            await stalled.close()

    run(work())
    nothing_left(server, agent)


async def beside_a_remote_that_does_not_read(server: ServerProcess) -> None:
    deaf = Deaf()
    with Remote(deaf) as stalled, Remote(echo) as remote:
        stream = await tunnel(server, stalled.address)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 30:
                async with asyncio.timeout(1.0):
                    await stream.write(bytes(MIB))
                sent += MIB
        assert sent < 1 << 30, "nobody reads that"
        await prompt_echo(server, remote.address, 20)
        deaf.go.set()
        async with asyncio.timeout(PROMPT_SECONDS):
            await stream.write(b"and on it goes")
        await stream.close()


def test_stalled_remote(ours: Pair) -> None:
    """Upstream: the agent's receive loop waits for it, with every other tunnel and every dial."""
    run(beside_a_remote_that_does_not_read(ours[0]))


@pytest.mark.go
@pytest.mark.parametrize("mode", MODES)
def test_stalled_remote_with_an_upstream_server(world: World, mode: Mode) -> None:
    """There is no flow control a tunnel with it: the stalled one is cut, the others go on."""
    server, agent = world.connected("go", "ours", mode=mode)
    resets = "nodenet_konnectivity_agent_tunnel_resets_total"

    def flood(address: str) -> None:
        """By the real way in: a client that writes as fast as it can."""

        async def work() -> None:
            stream = await tunnel(server, address)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(60):
                    while True:
                        await stream.write(bytes(MIB))
            with contextlib.suppress(Exception):
                await stream.close()

        run(work())

    async def work() -> None:
        deaf = Deaf()
        with Remote(deaf) as stalled, Remote(echo) as remote:
            flooding = asyncio.create_task(  # noqa: TID251  # awaited below
                asyncio.to_thread(flood, stalled.address), name="flood"
            )
            for _ in range(10):
                await prompt_echo(server, remote.address, 3)
                await asyncio.sleep(0.2)
            await asyncio.to_thread(
                wait_for, lambda: agent.metric(resets, reason="stalled") == 1, "it is cut"
            )
            await flooding
            deaf.go.set()
            await prompt_echo(server, remote.address, 3)

    run(work())
    assert agent.running


# -- bytes that got lost, or overtook others ------------------------------------------------------


def test_write_then_close(ours: Pair) -> None:
    """Upstream: of 50 uploads of 1 MiB 12 arrived whole, the worst had 504,064 bytes."""
    server, _ = ours
    data = random.Random(3).randbytes(MIB)
    sink = Sink()

    async def upload(address: str) -> None:
        stream = await tunnel(server, address)
        await stream.write(data)
        await stream.close()

    async def work(address: str) -> None:
        for _ in range(20):
            await asyncio.gather(*(upload(address) for _ in range(10)))

    with Remote(sink) as remote:
        run(work(remote.address))
        assert sink.wait(200) == [(MIB, hashlib.sha256(data).hexdigest())] * 200


def test_server_first_bytes(ours: Pair) -> None:
    """Upstream: 453 of 2,000 tunnels had bytes of the remote before the 200 line."""
    server, _ = ours
    first = b"SSH-2.0-OpenSSH_9.6\r\n"

    async def read(address: str) -> bytes:
        async with await tunnel(server, address) as stream:
            got = b""
            while len(got) < len(first):
                got += await stream.read()
            return got

    async def work(address: str) -> None:
        for _ in range(40):
            found = await asyncio.gather(*(read(address) for _ in range(50)))
            assert found == [first] * 50

    with Remote(banner(first)) as remote:
        run(work(remote.address))
        assert remote.accepted == 2000


def test_half_close(ours: Pair) -> None:
    """Upstream: a remote that answers after EOF was answered 0 of 20 times."""
    server, _ = ours
    data = random.Random(4).randbytes(100_000)

    async def ask(address: str) -> bytes:
        async with await tunnel(server, address) as stream:
            await stream.write(data)
            await stream.end()
            got = b""
            while part := await stream.read():
                got += part
            return got

    async def work(address: str) -> None:
        wanted = hashlib.sha256(data).hexdigest().encode()
        for _ in range(20):
            assert await asyncio.gather(*(ask(address) for _ in range(10))) == [wanted] * 10

    with Remote(digest_server) as remote:
        run(work(remote.address))


# -- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_graceful_drain_keeps_live_tunnels(world: World, mode: Mode) -> None:
    """Upstream with --graceful-shutdown-timeout=20s: live tunnels died after 1.0 s."""
    server = world.server("ours", "--graceful-shutdown-timeout=20s", mode=mode)
    world.agent("ours", server)
    wait_for(lambda: server.ready, "connected")

    async def work(address: str) -> None:
        stream = await tunnel(server, address)
        await stream.write(b"before")
        assert await stream.read() == b"before"
        server.signal(signal.SIGTERM)
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            await stream.write(b"still")
            async with asyncio.timeout(PROMPT_SECONDS):
                assert await stream.read() == b"still"
            await asyncio.sleep(0.1)
        assert server.running
        await stream.close()

    with Remote(echo) as remote:
        run(work(remote.address))
        assert server.wait(10) == 0, "it ends when the last tunnel has"


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
        assert leaving.wait(10) == 0


@pytest.mark.parametrize("mode", MODES)
def test_agent_loss_answers_pending_dials(world: World, mode: Mode) -> None:
    """Upstream: a gRPC client gets no packet in 8 s, and waits for its own time-out."""
    server, agent = world.connected("ours", "ours", mode=mode)

    async def work() -> None:
        with black_hole() as address:
            dials = [
                asyncio.create_task(tunnel(server, address), name="dial")  # noqa: TID251  # below
                for _ in range(20)
            ]
            await asyncio.to_thread(
                wait_for, lambda: server.metric(GAUGES[0]) == 20, "20 dials are pending"
            )
            agent.kill()
            began = time.monotonic()
            for failed in await asyncio.gather(*dials, return_exceptions=True):
                assert isinstance(failed, DialFailed)
            assert time.monotonic() - began < 3

    run(work())
    for gauge in GAUGES:
        returns_to_0(server, gauge)


#: A frontend with open tunnels and dials under way; it is killed.
FRONTEND = """
import asyncio, sys
from nodenet.konnectivity.client import dial
async def main(server, mode, address, hole):
    streams = [await dial(server, address, mode=mode) for _ in range(30)]
    for stream in streams:
        await stream.write(b"x")
        assert await stream.read() == b"x"
    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(dial(server, hole, mode=mode), name="dial")
        print("ready", flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("agent", ["ours", pytest.param("go", marks=pytest.mark.go)])
@pytest.mark.parametrize("mode", MODES)
def test_gauges_return_to_0(world: World, mode: Mode, agent: Maker) -> None:
    """Upstream: pending dials and established connections of a frontend that is gone stay counted,
    and a hang-up during a dial by HTTP CONNECT is not noticed."""
    server, other = world.connected("ours", agent, mode=mode)
    with Remote(echo) as remote, black_hole() as hole:
        command = [sys.executable, "-c", FRONTEND, str(server.target), mode, remote.address, hole]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as frontend:
            assert frontend.stdout is not None
            try:
                assert frontend.stdout.readline() == b"ready\n"
                wait_for(lambda: server.metric(GAUGES[0]) == 10, "10 dials are pending")
                assert server.metric(GAUGES[1]) == 30 == remote.open
            finally:
                frontend.kill()
        nothing_left(server, other)
        wait_for(lambda: remote.open == 0, "the remotes are closed")
