"""The server's life: drain, the end, and what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
from pathlib import Path

import pytest

from nodenet.agents.konnectivity.server_config import Mode
from nodenet.agents.konnectivity.server_frontends import ConnectProtocol, GrpcFrontend
from nodenet.agents.konnectivity.server_listeners import Listener
from nodenet.konnectivity.extensions import NONE
from nodenet.konnectivity.grpc_frontend import ProxyStream
from nodenet.konnectivity.packets import CloseResponse, Data, DialRequest, DialResponse
from nodenet.konnectivity.server_counts import Reset
from nodenet.konnectivity.server_tunnel import Tunnel
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import Call
from nodenet.rpc.connection import Connection
from nodenet.rpc.status import Code, Status
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.agent_scene import run, until
from tests.unit.agents.konnectivity.server_wire import (
    Wire,
    connect_socket,
    fake_agent,
    nothing_left,
    proxy_stream,
    server_tls,
    serving,
)

DIAL = DialRequest("tcp", "10.0.0.1:80", 5)


def test_graceful_drain_keeps_live_tunnels_to_the_deadline(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server, peer=NONE) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                loop = asyncio.get_running_loop()
                began = loop.time()
                draining = asyncio.ensure_future(server.drain(0.8))
                for number in range(5):
                    client.writer.write(b"%d" % number)
                    assert await agent.next() == Data(1, b"%d" % number)
                    await asyncio.sleep(0.08)
                assert not draining.done() and loop.time() - began > 0.35
                assert await draining == 1
                assert loop.time() - began > 0.7

    run(test())


def test_a_drain_ends_with_the_last_tunnel(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                draining = asyncio.ensure_future(server.drain(15.0))
                await asyncio.sleep(0.05)
                agent.send(Data(1, b"the end"), CloseResponse("", 1))
                assert await client.rest() == b"the end"
            assert await draining == 0

    run(test())


@pytest.mark.parametrize("mode", [Mode.HTTP_CONNECT, Mode.GRPC])
def test_a_drain_waits_for_clients_that_have_not_taken_everything(
    tmp_path: Path, mode: Mode
) -> None:
    """Their tunnels are over, but not for them."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with serving(tmp_path, mode) as server, fake_agent(server, peer=NONE) as agent:
            async with contextlib.AsyncExitStack() as stack:
                if mode is Mode.GRPC:
                    stream = await stack.enter_async_context(proxy_stream(tmp_path / "f"))
                    stream.send(DIAL)
                else:
                    client = await stack.enter_async_context(connect_socket(tmp_path / "f"))
                    await client.ask()
                await agent.accept_dial()
                if mode is Mode.GRPC:
                    assert await stream.next() == DialResponse("", 1, DIAL.random)
                    stream.call.pause()
                else:
                    await client.established()
                    client.stop_reading()
                for _ in range(3):
                    agent.send(Data(1, bytes(1 << 20)))
                agent.send(CloseResponse("", 1))
                await until(lambda: server.core.established == 0, "the tunnel is over")
                assert server.unfinished > 0
                draining = loop.create_task(server.drain(15.0))
                await asyncio.sleep(0.1)
                assert not draining.done()
                if mode is Mode.GRPC:
                    stream.call.resume()
                    size = 0
                    while isinstance(packet := await stream.next(), Data):
                        size += len(packet.payload)
                    assert packet == CloseResponse("", 1)
                else:
                    client.go_on_reading()
                    size = len(await client.rest())
                assert size == 3 << 20
                assert await draining == 0

    run(test())


def test_a_draining_server_takes_no_new_connections(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server) as agent,
            connect_socket(tmp_path / "f") as early,
        ):
            await until(lambda: bool(server.frontends.sockets), "it is accepted")
            server.stop_accepting()
            with pytest.raises(OSError):  # noqa: PT011
                await asyncio.open_unix_connection(str(tmp_path / "f"))
            await early.ask()
            assert (await early.rest()).startswith(b"HTTP/1.1 503 ")
            assert agent.packets.empty()

    run(test())


def test_our_agents_are_told_of_a_drain_and_upstreams_are_not(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server, "ours") as ours,
            fake_agent(server, "go", peer=NONE) as go,
        ):
            told: list[str] = []
            ours.protocol.connection.on_draining = lambda: told.append("ours")
            go.protocol.connection.on_draining = lambda: told.append("go")
            await server.drain(0.2)
            await until(lambda: told == ["ours"], "ours is told")

    run(test())


def test_the_end_tells_everybody(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, Mode.GRPC) as server:
            agent_context, stream_context = fake_agent(server), proxy_stream(tmp_path / "f")
            agent = await agent_context.__aenter__()
            stream = await stream_context.__aenter__()
            stream.send(DialRequest("tcp", "x:1", 5))
            await agent.accept_dial()
            assert isinstance(await stream.next(), DialResponse)
        goodbye = Status(Code.UNAVAILABLE, "server is shutting down")
        assert await agent.status == goodbye and await stream.status == goodbye
        assert not (tmp_path / "f").exists()
        await stream_context.__aexit__(None, None, None)
        await agent_context.__aexit__(None, None, None)

    run(test())


def test_the_end_cuts_who_does_not_listen(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as deaf:
                await deaf.ask()
                await agent.accept_dial()
                await deaf.established()
                deaf.stop_reading()
                agent.send(Data(1, bytes(1_000_000)))
                await until(lambda: bool(list(server.core.tunnels())), "it is open")
                loop = asyncio.get_running_loop()
                began = loop.time()
                await server._say_goodbye()
                assert loop.time() - began < 3
                assert not server.frontends.sockets and not server.connections

    run(test())


def test_the_end_cuts_who_is_in_the_middle_of_a_handshake(
    tmp_path: Path, certs: Certificates
) -> None:
    async def test() -> None:
        async with serving(tmp_path, agent_tls=server_tls(certs)) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.agent_port)
            await until(lambda: len(server.poller) == 3, "it is accepted")
        assert len(server.poller) == 0
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    run(test())


def test_every_tunnel_of_an_agent_that_is_lost_is_told(tmp_path: Path) -> None:
    count = 300

    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server) as agent,
            contextlib.AsyncExitStack() as stack,
        ):
            clients = []
            for connect_id in range(1, count + 1):
                client = await stack.enter_async_context(connect_socket(tmp_path / "f"))
                await client.ask()
                await agent.accept_dial(connect_id)
                await client.established()
                clients.append(client)
            assert server.core.established == count
            await agent.hang_up()
            for client in clients:
                assert await client.rest() == b""
            await nothing_left(server)

    run(test())


def test_gauges_return_to_zero_after_whatever_clients_do(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            for number in range(1, 61):
                address = f"x:{number}"
                async with connect_socket(tmp_path / "f") as client:
                    if number % 4 == 1:
                        client.writer.write(b"CONNECT x")
                    elif number % 4 > 1:
                        await client.ask(address)
                        while not isinstance(asked := await agent.next(), DialRequest):
                            pass
                        assert asked.address == address
                        if number % 4 == 3:
                            agent.send(DialResponse("", number, asked.random))
                            await client.established()
                            client.writer.transport.abort()
            await nothing_left(server)
            assert len(server.core.backends) == 1 and not server.core.counts.resets[Reset.IDLE]

    run(test())


@pytest.mark.parametrize("mode", [Mode.GRPC, Mode.HTTP_CONNECT])
def test_what_has_ended_needs_no_garbage_collector(tmp_path: Path, mode: Mode) -> None:
    """Its thresholds are high: what waits for it is memory that grows."""
    kinds = (GrpcFrontend, ConnectProtocol, ProxyStream, Tunnel, Call, Connection, RpcProtocol)

    def alive() -> dict[str, int]:
        names = [type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds)]
        return {name: names.count(name) for name in sorted(set(names))}

    async def one(agent: Wire, connect_id: int) -> None:
        if mode is Mode.GRPC:
            async with proxy_stream(tmp_path / "f") as stream:
                stream.send(DialRequest("tcp", "x:1", 5))
                await _dialled(agent, connect_id)
                await stream.next()
                agent.send(Data(connect_id, b"x"), CloseResponse("", connect_id))
                await stream.next()
                await stream.next()
        else:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await _dialled(agent, connect_id)
                await client.established()

    async def test() -> None:
        async with serving(tmp_path, mode) as server, fake_agent(server) as agent:
            await one(agent, 1)
            await nothing_left(server)
            gc.collect()
            gc.disable()
            try:
                before = alive()
                for connect_id in range(2, 12):
                    await one(agent, connect_id)
                await nothing_left(server)
                await until(
                    lambda: all(n <= before.get(name, 0) for name, n in alive().items()),
                    f"no more than {before}",
                )
            finally:
                gc.enable()

    run(test())


async def _dialled(agent: Wire, connect_id: int) -> None:
    """Answers the next dial, whatever comes before it."""
    while not isinstance(asked := await agent.next(), DialRequest):
        pass
    agent.send(DialResponse("", connect_id, asked.random))


def test_a_fault_in_one_tick_is_not_the_end_of_all_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[float] = []

    def tick(_self: object, now: float) -> None:
        ticks.append(now)
        if len(ticks) == 2:
            raise RuntimeError("a fault of ours")

    monkeypatch.setattr("nodenet.agents.konnectivity.server.ServerCore.tick", tick)
    monkeypatch.setattr("nodenet.agents.konnectivity.server.TICK_SECONDS", 0.01)

    async def test() -> None:
        told: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: told.append(str(context["exception"])))
        async with serving(tmp_path):
            await until(lambda: len(ticks) > 4, "it goes on")
        assert told == ["a fault of ours"]

    run(test())


def test_a_server_that_cannot_accept_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Listener.start
    started: list[Listener] = []

    async def start(self: Listener) -> None:
        if started:
            raise OSError(errno.EMFILE, "too many open files")
        started.append(self)
        await real(self)

    monkeypatch.setattr(Listener, "start", start)

    async def test() -> None:
        before = asyncio.all_tasks()
        with pytest.raises(OSError, match="too many open files"):
            async with serving(tmp_path):
                pass
        assert asyncio.all_tasks() == before and not (tmp_path / "f").exists()

    run(test())
