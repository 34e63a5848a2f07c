"""Frontends on the wire: CONNECT sockets, Proxy streams, and both on one port."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
import uvloop

from nodenet.agents.konnectivity import server_frontends
from nodenet.agents.konnectivity.server_config import Mode
from nodenet.agents.konnectivity.server_frontends import ConnectProtocol
from nodenet.konnectivity.extensions import DEFAULT_WINDOW_BYTES, NONE
from nodenet.konnectivity.packets import (
    PROXY_METHOD,
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    HalfClose,
    Window,
    pull_packet,
    push_packet,
)
from nodenet.konnectivity.server_counts import Reset
from nodenet.konnectivity.server_tunnel import HOLD_BYTES
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.connection import Connection
from nodenet.rpc.status import Code
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.agent_scene import run, until
from tests.unit.agents.konnectivity.server_wire import (
    OK_200,
    Wire,
    client_context,
    connect_socket,
    connected,
    fake_agent,
    nothing_left,
    proxy_stream,
    server_tls,
    serving,
)

DIAL = DialRequest("tcp", "10.0.0.1:80", 5)


def test_a_tunnel_by_connect(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask("node1:10250")
                assert (await agent.accept_dial(7)).address == "node1:10250"
                await client.established()
                client.writer.write(b"ping")
                assert await agent.next() == Data(7, b"ping")
                agent.send(Data(7, b"pong"))
                assert await client.reader.readexactly(4) == b"pong"
                agent.send(CloseResponse("", 7))
                assert await client.rest() == b""
            await nothing_left(server)

    run(test())


def test_the_answer_is_upstreams_to_the_byte_and_comes_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server) as agent,
            connect_socket(tmp_path / "f") as client,
        ):
            await client.ask()
            await agent.accept_dial()
            assert await client.reader.read(4096) == OK_200

    run(test())


def test_server_first_bytes_never_precede_the_200(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            for connect_id in range(1, 101):
                async with connect_socket(tmp_path / "f") as client:
                    await client.ask()
                    asked = await agent.next()
                    assert isinstance(asked, DialRequest)
                    agent.send(DialResponse("", connect_id, asked.random), Data(connect_id, b"SSH"))
                    assert await client.reader.readexactly(len(OK_200) + 3) == OK_200 + b"SSH"
                assert await agent.next() == CloseRequest(connect_id)
            await nothing_left(server)

    run(test())


def test_payload_behind_the_head_is_the_first_data(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server) as agent,
            connect_socket(tmp_path / "f") as client,
        ):
            await client.ask(payload=b"hello")
            asked = await agent.next()
            client.writer.write(b" world")
            await asyncio.sleep(0.01)
            assert isinstance(asked, DialRequest)
            agent.send(DialResponse("", 1, asked.random))
            got = b""
            while len(got) < 11:
                packet = await agent.next()
                assert isinstance(packet, Data)
                got += packet.payload
            assert got == b"hello world"

    run(test())


def test_much_payload_ahead_of_the_200_is_held_back(tmp_path: Path) -> None:
    size = 2 << 20

    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server) as agent,
            connect_socket(tmp_path / "f") as client,
        ):
            await client.ask()
            asked = await agent.next()
            assert isinstance(asked, DialRequest)
            writing = asyncio.ensure_future(_write(client.writer, bytes(size)))
            (sock,) = server.frontends.sockets
            await until(lambda: sock._held, "the client is held")
            agent.send(DialResponse("", 1, asked.random))
            got = 0
            while got < size - (1 << 20):
                packet = await agent.next()
                assert isinstance(packet, Data)
                got += len(packet.payload)
            writing.cancel()

    run(test())


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ("dial tcp 10.0.0.1:80: connect: connection refused", b"502"),
        ("dial tcp 10.0.0.1:80: i/o timeout", b"504"),
        ("socket: too many open files", b"503"),
    ],
)
def test_the_agents_error_is_a_status(tmp_path: Path, error: str, status: bytes) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                asked = await agent.next()
                assert isinstance(asked, DialRequest)
                agent.send(DialResponse(error, 0, asked.random))
                answer = await client.rest()
                assert answer.startswith(b"HTTP/1.1 " + status)
                assert answer.endswith(b"\r\n\r\n" + error.encode())
            await nothing_left(server)

    run(test())


def test_without_an_agent_there_is_500(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path), connect_socket(tmp_path / "f") as client:
            await client.ask()
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
            assert answer.endswith(b"currently no tunnels available: No agent available")

    run(test())


def test_another_method_is_405(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path), connect_socket(tmp_path / "f") as client:
            client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 405 ")
            assert answer.endswith(b"this proxy only supports CONNECT passthrough\n")

    run(test())


def test_a_client_that_never_asks_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_frontends, "HEAD_SECONDS", 0.1)

    async def test() -> None:
        async with serving(tmp_path), connect_socket(tmp_path / "f") as client:
            client.writer.write(b"CONNECT a:1 HT")
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")

    run(test())


def test_a_client_that_hangs_up_while_it_is_dialled_is_noticed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                asked = await agent.next()
            assert isinstance(asked, DialRequest)
            assert await agent.next() == CloseDial(asked.random)
            agent.send(DialResponse("", 3, asked.random))
            assert await agent.next() == CloseRequest(3)
            await nothing_left(server)

    run(test())


def test_what_a_client_said_before_it_hung_up_is_delivered(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask(payload=b"all there is")
                asked = await agent.next()
            assert isinstance(asked, DialRequest)
            await until(lambda: not server.frontends.sockets, "its socket is gone")
            agent.send(DialResponse("", 1, asked.random))
            assert await agent.next() == Data(1, b"all there is")
            assert await agent.next() == CloseRequest(1)
            await nothing_left(server)

    run(test())


def test_half_close_is_carried_both_ways(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                client.writer.write(b"question")
                client.writer.write_eof()
                assert [await agent.next(), await agent.next()] == [
                    Data(1, b"question"),
                    HalfClose(1),
                ]
                agent.send(Data(1, b"answer"), HalfClose(1), CloseResponse("", 1))
                assert await client.rest() == b"answer"
            await nothing_left(server)

    run(test())


def test_a_client_that_closes_altogether_is_not_waited_for(tmp_path: Path) -> None:
    """Its agent hears of a close and not of a half, where the socket can tell."""

    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                client.writer.write(b"last")
            assert [await agent.next(), await agent.next()] == [Data(1, b"last"), CloseRequest(1)]
            await nothing_left(server)

    run(test())


def test_a_client_that_closes_while_it_is_held_loses_nothing(tmp_path: Path) -> None:
    """Though its agent still has something to say, which can be written no more."""
    content = Random(1).randbytes(DEFAULT_WINDOW_BYTES + HOLD_BYTES + 100_000)

    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                client.writer.write(content[:-100_000])
                (tunnel,) = server.core.tunnels()
                await until(lambda: tunnel.queue.size == HOLD_BYTES, "it is held")
                client.writer.write(content[-100_000:])
                transport = client.writer.transport
                await until(lambda: not transport.get_write_buffer_size(), "the kernel has it")
                assert tunnel.held and tunnel.queue.size == HOLD_BYTES
            agent.send(Data(1, b"nobody reads this"))
            await until(lambda: not server.frontends.sockets, "its end is seen")
            got = b""
            while not isinstance(packet := await agent.next(), CloseRequest):
                assert isinstance(packet, Data)
                got += packet.payload
                agent.send(Window(1, len(packet.payload)))
            assert got == content
            await nothing_left(server)

    run(test())


def test_a_client_that_closes_after_its_half_is_not_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                client.writer.write_eof()
                assert await agent.next() == HalfClose(1)
            assert await agent.next() == CloseRequest(1)
            await nothing_left(server)

    run(test())


def test_the_remotes_end_leaves_the_client_writing(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                agent.send(Data(1, b"all"), HalfClose(1))
                assert await client.rest() == b"all"
                client.writer.write(b"still")
                assert await agent.next() == Data(1, b"still")
            assert await agent.next() == CloseRequest(1)
            await nothing_left(server)

    run(test())


def test_an_upstream_agent_hears_the_clients_end_behind_its_data(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as server, fake_agent(server, peer=NONE) as agent:
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                await agent.accept_dial()
                await client.established()
                client.writer.write(b"u" * 1_000_000)
                client.writer.write_eof()
                got = 0
                while got < 1_000_000:
                    packet = await agent.next()
                    assert isinstance(packet, Data)
                    got += len(packet.payload)
                assert await agent.next() == CloseRequest(1)
                assert await client.rest() == b""
            await nothing_left(server)

    run(test())


def test_a_client_that_never_reads_stops_nobody(tmp_path: Path) -> None:
    """With an agent that knows no windows, which is the hard case."""

    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server, peer=NONE) as agent,
            connect_socket(tmp_path / "f") as deaf,
        ):
            await deaf.ask()
            await agent.accept_dial()
            await deaf.established()
            deaf.stop_reading()
            for _ in range(24):
                agent.send(Data(1, bytes(1 << 20)))
            async with connect_socket(tmp_path / "f") as client:
                await client.ask()
                while not isinstance(asked := await agent.next(), DialRequest):
                    pass
                agent.send(DialResponse("", 2, asked.random), Data(2, b"hello"))
                async with asyncio.timeout(8):
                    await client.established()
                    assert await client.reader.readexactly(5) == b"hello"
            await until(lambda: server.core.counts.resets[Reset.STALLED] == 1, "it was cut")

    run(test())


def test_a_client_that_takes_nothing_at_the_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_frontends, "FLUSH_SECONDS", 0.1)

    async def test() -> None:
        async with (
            serving(tmp_path) as server,
            fake_agent(server) as agent,
            connect_socket(tmp_path / "f") as deaf,
        ):
            await deaf.ask()
            await agent.accept_dial()
            await deaf.established()
            deaf.stop_reading()
            agent.send(Data(1, bytes(900_000)), CloseResponse("", 1))
            await until(lambda: bool(server.frontends.closing), "it is closing")
            await nothing_left(server)

    run(test())


def test_a_client_that_takes_some_now_and_then_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is left at the end of its tunnel, however long that takes."""
    monkeypatch.setattr(server_frontends, "FLUSH_SECONDS", 0.15)
    much = bytes(range(256)) * (12 << 10)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with serving(tmp_path) as server, fake_agent(server, peer=NONE) as agent:
            with socket.socket(socket.AF_UNIX) as slow:
                slow.setblocking(False)
                slow.connect(str(tmp_path / "f"))
                slow.send(b"CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n")
                await agent.accept_dial()
                assert await loop.sock_recv(slow, len(OK_200)) == OK_200
                agent.send(Data(1, much), CloseResponse("", 1))
                await until(lambda: bool(server.frontends.closing), "it is closing")
                got, end = bytearray(), loop.time() + 0.8
                while loop.time() < end:
                    got += await loop.sock_recv(slow, 16 << 10)
                    await asyncio.sleep(0.02)
                assert server.unfinished == 1
                while part := await loop.sock_recv(slow, 1 << 20):
                    got += part
                assert got == much
            await nothing_left(server)

    run(test())


def test_a_tunnel_by_grpcio(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, Mode.GRPC) as server, fake_agent(server) as agent:
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/f") as channel:
                call = channel.stream_stream(PROXY_METHOD)()
                await call.write(push_packet(DIAL))
                assert await agent.accept_dial(3) == DIAL
                assert pull_packet(await call.read()) == DialResponse("", 3, 5)
                await call.write(push_packet(Data(3, b"up")))
                assert await agent.next() == Data(3, b"up")
                agent.send(Data(3, b"down"))
                assert pull_packet(await call.read()) == Data(3, b"down")
                await call.write(push_packet(CloseRequest(3)))
                assert await agent.next() == CloseRequest(3)
                agent.send(CloseResponse("", 3))
                assert pull_packet(await call.read()) == CloseResponse("", 3)
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
                assert await call.code() is grpc.StatusCode.OK
            await nothing_left(server)

    run(test())


def test_a_proxy_stream_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, Mode.GRPC) as server, fake_agent(server) as agent:
            async with proxy_stream(tmp_path / "f") as client:
                client.send(DIAL)
                await agent.accept_dial()
                assert isinstance(await client.next(), DialResponse)
                client.call.cancel()
                assert await agent.next() == CloseRequest(1)
            async with proxy_stream(tmp_path / "f") as client:
                client.send(DIAL)
                await agent.next()
                await client.hang_up()
                assert await agent.next() == CloseDial(5)
            await nothing_left(server)

    run(test())


def test_garbage_ends_the_stream_of_its_client_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path, Mode.GRPC) as server,
            fake_agent(server) as agent,
            proxy_stream(tmp_path / "f") as good,
            proxy_stream(tmp_path / "f") as bad,
        ):
            good.send(DIAL)
            await agent.accept_dial()
            await good.next()
            bad.call.send(b"\xff\xff\xff")
            assert (await bad.status).code is Code.INTERNAL
            good.send(Data(1, b"on"))
            assert await agent.next() == Data(1, b"on")

    run(test())


def test_a_grpc_client_that_never_reads_stops_nobody_on_its_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(tmp_path, Mode.GRPC) as server,
            fake_agent(server) as agent,
            proxy_stream(tmp_path / "f") as deaf,
        ):
            deaf.call.pause()
            deaf.send(DIAL)
            await agent.accept_dial(1)
            for _ in range(8):
                agent.send(Data(1, bytes(100_000)))
            second = type(deaf)()
            second.open(deaf.protocol, PROXY_METHOD, ())
            second.send(DialRequest("tcp", "10.0.0.2:80", 6))
            await agent.accept_dial(2)
            assert await second.next() == DialResponse("", 2, 6)
            agent.send(Data(2, bytes(500_000)))
            got = 0
            while got < 500_000:
                part = await second.next()
                assert isinstance(part, Data) and part.connect_id == 2
                got += len(part.payload)
            assert got == 500_000

    run(test())


@pytest.mark.parametrize("plain", [True, False])
def test_one_port_takes_both_kinds(tmp_path: Path, certs: Certificates, plain: bool) -> None:
    async def test() -> None:
        settings: dict[str, Any] = {}
        if not plain:
            settings = {"frontend_port": 0, "frontend_host": "127.0.0.1"}
        tls = None if plain else server_tls(certs)
        async with (
            serving(tmp_path, Mode.ANY, frontend_tls=tls, **settings) as server,
            fake_agent(server) as agent,
        ):
            target = tmp_path / "f" if plain else server.frontend_port
            context = None if plain else client_context(certs)
            async with connect_socket(target, context=context) as client:
                await client.ask()
                await agent.accept_dial(1)
                await client.established()
            if plain:
                async with proxy_stream(tmp_path / "f") as stream:
                    stream.send(DIAL)
                    while not isinstance(asked := await agent.next(), DialRequest):
                        pass
                    agent.send(DialResponse("", 2, asked.random))
                    assert await stream.next() == DialResponse("", 2, 5)

    run(test())


@pytest.mark.parametrize("runner", [run, uvloop.run])
@pytest.mark.parametrize("plain", [True, False])
def test_connections_are_freed_without_the_garbage_collector(
    tmp_path: Path, certs: Certificates, plain: bool, runner: Callable[[Any], None]
) -> None:
    """One with TLS has half a megabyte of buffers, and thousands end before it is run."""
    kinds = (ConnectProtocol, RpcProtocol, Connection)

    def there() -> list[object]:
        return [each for each in gc.get_objects() if type(each) in kinds]

    async def test() -> None:
        settings: dict[str, Any] = {}
        if not plain:
            settings = {"frontend_port": 0, "frontend_host": "127.0.0.1"}
            settings["frontend_tls"] = server_tls(certs)
        async with serving(tmp_path, Mode.ANY, **settings) as server:
            target = tmp_path / "f" if plain else server.frontend_port
            context = None if plain else client_context(certs)
            for _ in range(3):
                async with connect_socket(target, context=context) as client:
                    await client.ask()
                    assert b" 500 " in await client.rest()
                async with connected(target, context=context) as protocol:
                    wire = Wire()
                    wire.open(protocol, PROXY_METHOD, ())
                    wire.send(DIAL)
                    assert isinstance(await wire.next(), DialResponse)
                    del wire
                del protocol
            await nothing_left(server)
            await until(lambda: len(there()) == len(before), "nothing is left")

    gc.collect()
    before = there()  # of other tests
    gc.disable()
    try:
        runner(test())
    finally:
        gc.enable()


def test_a_connection_that_says_nothing_of_its_kind_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodenet.agents.konnectivity.server_listeners.HANDSHAKE_SECONDS", 0.1)

    async def test() -> None:
        async with serving(tmp_path, Mode.ANY), connect_socket(tmp_path / "f") as client:
            client.writer.write(b"PR")
            assert await client.rest() == b""

    run(test())
