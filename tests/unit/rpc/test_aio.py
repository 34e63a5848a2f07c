"""Ours against grpcio, both ways, over a Unix socket and TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import HURRY_MESSAGES, Buffer, Call, CallHandler
from nodenet.rpc.connection import Role
from nodenet.rpc.headers import Metadata
from nodenet.rpc.status import Code, Status

PATH = "/AgentService/Connect"
SIZES = [0, 1, 100, 16_384, 100_000, 1 << 20, (4 << 20) - 100]


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


class Echo(CallHandler):
    """Sends back what it gets and ends when the client ends."""

    def __init__(self, call: Call) -> None:
        self.call = call
        call.answer((("serverid", "s1"), ("seen", dict(call.metadata).get("agentid", ""))))

    def received(self, message: bytes) -> None:
        self.call.send(message)

    def ended(self) -> None:
        self.call.end(Status(Code.ABORTED, "done: 100 %"))


class Ours(CallHandler):
    """A client's call as queues."""

    def __init__(self) -> None:
        self.metadata: asyncio.Future[Metadata] = asyncio.get_running_loop().create_future()
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.status: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    def answered(self, metadata: Metadata) -> None:
        self.metadata.set_result(metadata)

    def received(self, message: bytes) -> None:
        self.messages.put_nowait(message)

    def closed(self, status: Status) -> None:
        self.status.set_result(status)


class Hurried(Ours):
    """Has one message, and wants to say more than it has when it is asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Call
        self.asked = 0

    def pull(self) -> Sequence[Buffer] | None:
        self.asked += 1
        if self.asked > 1:
            return None
        for _ in range(HURRY_MESSAGES):
            self.call.want()
        return (b"now",)


def accept(call: Call) -> CallHandler | None:
    return Echo(call) if call.path == PATH else None


async def _talk_by_grpcio(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(PATH)(metadata=(("agentid", "a1"),))
    metadata = dict(await call.initial_metadata())
    assert metadata["serverid"] == "s1" and metadata["seen"] == "a1"
    for size in SIZES:
        message = bytes(range(256)) * (size // 256) + bytes(size % 256)
        await call.write(message)
        assert await call.read() == message
    await call.done_writing()
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    assert await call.code() is grpc.StatusCode.ABORTED
    assert await call.details() == "done: 100 %"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary("/Nobody/Home")(b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_grpcio_client_talks_to_our_server(tmp_path: Path) -> None:
    async def talk() -> None:
        loop = asyncio.get_running_loop()
        lost = asyncio.Event()
        made: list[RpcProtocol] = []
        server = await loop.create_unix_server(
            lambda: RpcProtocol(
                Role.SERVER, accept=accept, on_made=made.append, on_lost=lambda _: lost.set()
            ),
            str(tmp_path / "s"),
        )
        async with server:
            options = [("grpc.max_receive_message_length", -1)]
            async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s", options) as channel:
                await _talk_by_grpcio(channel)
            made[0].close()
            await lost.wait()

    run(talk())


def test_a_grpcio_client_talks_to_our_server_over_tls(certificate: tuple[Path, Path]) -> None:
    async def talk() -> None:
        chain, key = certificate
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(chain, key)
        context.set_alpn_protocols(["h2"])
        lost = asyncio.Event()
        made: list[RpcProtocol] = []
        server = await asyncio.get_running_loop().create_server(
            lambda: RpcProtocol(
                Role.SERVER, accept=accept, on_made=made.append, on_lost=lambda _: lost.set()
            ),
            "127.0.0.1",
            0,
            ssl=context,
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            trust = grpc.ssl_channel_credentials(chain.read_bytes())
            options = [("grpc.max_receive_message_length", -1)]
            async with grpc.aio.secure_channel(f"localhost:{port}", trust, options) as channel:
                await _talk_by_grpcio(channel)
            made[0].close()
            await lost.wait()

    run(talk())


async def _echo(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    await context.send_initial_metadata((("serverid", "s1"),))
    async for message in messages:
        yield message
    await context.abort(grpc.StatusCode.ABORTED, "done: 100 %")


def test_our_client_talks_to_a_grpcio_server(tmp_path: Path) -> None:
    async def talk() -> None:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        handlers = {"Connect": grpc.stream_stream_rpc_method_handler(_echo)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("AgentService", handlers),)
        )
        server.add_insecure_port(f"unix:{tmp_path}/s")
        await server.start()
        lost = asyncio.Event()
        _, protocol = await asyncio.get_running_loop().create_unix_connection(
            lambda: RpcProtocol(Role.CLIENT, on_lost=lambda _: lost.set()), str(tmp_path / "s")
        )
        ours = Ours()
        call = protocol.connection.open(PATH, ours, (("agentid", "a1"),))
        assert dict(await ours.metadata)["serverid"] == "s1"
        for size in SIZES:
            call.send(bytes(size))
            assert await ours.messages.get() == bytes(size)
        call.end()
        assert await ours.status == Status(Code.ABORTED, "done: 100 %")
        nobody = Ours()
        protocol.connection.open("/Nobody/Home", nobody)
        assert (await nobody.status).code is Code.UNIMPLEMENTED
        protocol.close()
        await lost.wait()
        await server.stop(None)

    run(talk())


def test_many_messages_do_not_wait_for_the_end_of_the_turn(tmp_path: Path) -> None:
    async def talk() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(
            lambda: RpcProtocol(Role.SERVER, accept=accept), str(tmp_path / "s")
        )
        async with server:
            _, protocol = await loop.create_unix_connection(
                lambda: RpcProtocol(Role.CLIENT), str(tmp_path / "s")
            )
            ours = Hurried()
            call = ours.call = protocol.connection.open(PATH, ours)
            await ours.metadata
            for _ in range(HURRY_MESSAGES - 1):
                call.want()
            assert ours.asked == 0
            call.want()
            assert ours.asked == 2  # a message, in which it wants as many again, and none
            assert await ours.messages.get() == b"now"
            protocol.close()
            await ours.status
            for _ in range(HURRY_MESSAGES):
                call.want()  # it is over, and nobody minds

    run(talk())


def test_a_peer_that_vanishes_is_told_to_every_call(tmp_path: Path) -> None:
    async def talk() -> None:
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: RpcProtocol(Role.SERVER, accept=accept), str(tmp_path / "s")
        )
        async with server:
            _, protocol = await asyncio.get_running_loop().create_unix_connection(
                lambda: RpcProtocol(Role.CLIENT), str(tmp_path / "s")
            )
            ours = Ours()
            protocol.connection.open(PATH, ours)
            await ours.metadata
            protocol.transport.abort()
            assert (await ours.status).code is Code.UNAVAILABLE

    run(talk())


def test_a_closed_connection_takes_what_was_written_with_it(tmp_path: Path) -> None:
    async def talk() -> None:
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: RpcProtocol(Role.SERVER, accept=accept), str(tmp_path / "s")
        )
        async with server:
            lost = asyncio.Event()
            _, protocol = await asyncio.get_running_loop().create_unix_connection(
                lambda: RpcProtocol(Role.CLIENT, on_lost=lambda _: lost.set()), str(tmp_path / "s")
            )
            ours = Ours()
            protocol.connection.open(PATH, ours)
            await ours.metadata
            protocol.close()
            assert (await ours.status).text == "connection closed"
            await lost.wait()

    run(talk())
