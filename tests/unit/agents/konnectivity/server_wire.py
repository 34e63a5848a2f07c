"""A real server in the test's loop, and peers that a test plays: agents, CONNECT and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, cast

from nodenet.agents.konnectivity.server import Server
from nodenet.agents.konnectivity.server_agents import Authenticator
from nodenet.agents.konnectivity.server_config import Mode, ServerConfig, TlsFiles
from nodenet.konnectivity import extensions
from nodenet.konnectivity.extensions import OURS, Extensions
from nodenet.konnectivity.packets import (
    AGENT_METHOD,
    PROXY_METHOD,
    DialRequest,
    DialResponse,
    Packet,
    pull_packet,
    push_packet,
)
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import CallHandler
from nodenet.rpc.connection import Role
from nodenet.rpc.headers import Metadata
from nodenet.rpc.status import Status
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.agent_scene import until

OK_200 = b"HTTP/1.1 200 Connection Established\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    mode: Mode = Mode.HTTP_CONNECT,
    *,
    authenticator: Authenticator | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """A server with a Unix socket ``folder/f`` for frontends and a plain port for agents."""
    config = ServerConfig(
        **{
            "server_id": "s1",
            "mode": mode,
            "uds": folder / "f",
            "frontend_port": None,
            "agent_host": "127.0.0.1",
            "agent_port": 0,
            "lease_labels": {},
            **settings,
        }
    )
    async with Server(config, authenticator=authenticator, rng=Random(1)) as server:
        yield server


def server_tls(certs: Certificates) -> TlsFiles:
    """Mutual TLS for either port."""
    return TlsFiles(certs.server.cert, certs.server.key, certs.ca)


def client_context(certs: Certificates, *, foreign: bool = False) -> ssl.SSLContext:
    """What a peer shows: its own certificate, or one that a foreign CA has signed."""
    made = ssl.create_default_context(cafile=certs.ca)
    pair = certs.foreign_client if foreign else certs.client
    made.load_cert_chain(pair.cert, pair.key)
    made.set_alpn_protocols(["h2"])
    return made


class Wire(CallHandler):
    """One call of a client's, its messages as packets."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Metadata] = loop.create_future()
        self.packets: asyncio.Queue[Packet] = asyncio.Queue()
        self.status: asyncio.Future[Status] = loop.create_future()
        self.protocol: RpcProtocol

    def answered(self, metadata: Metadata) -> None:
        self.answer.set_result(metadata)

    def received(self, message: bytes) -> None:
        self.packets.put_nowait(pull_packet(message))

    def closed(self, status: Status) -> None:
        if not self.status.done():  # a test that ran out of time has cancelled it
            self.status.set_result(status)
        if not self.answer.done():
            self.answer.cancel()

    def open(self, protocol: RpcProtocol, path: str, metadata: Metadata) -> None:
        """Opens the call."""
        self.protocol = protocol
        self.call = protocol.connection.open(path, self, metadata)

    def send(self, *packets: Packet) -> None:
        """Sends packets."""
        for packet in packets:
            self.call.send(push_packet(packet))

    async def next(self) -> Packet:
        """The next packet of the server."""
        return await self.packets.get()

    async def accept_dial(self, connect_id: int = 1) -> DialRequest:
        """Answers the next packet, a dial."""
        asked = await self.next()
        assert isinstance(asked, DialRequest), asked
        self.send(DialResponse("", connect_id, asked.random))
        return asked

    async def hang_up(self) -> None:
        """Drops the connection."""
        self.protocol.abort()
        await self.status


@contextlib.asynccontextmanager
async def connected(
    target: Path | int, *, context: ssl.SSLContext | None = None
) -> AsyncIterator[RpcProtocol]:
    """An HTTP/2 connection to a Unix socket or a port of this host."""
    loop = asyncio.get_running_loop()
    lost = asyncio.Event()

    def factory() -> RpcProtocol:
        return RpcProtocol(Role.CLIENT, secure=context is not None, on_lost=lambda _: lost.set())

    if isinstance(target, Path):
        _, protocol = await loop.create_unix_connection(factory, str(target))
    else:
        host = None if context is None else "localhost"
        _, protocol = await loop.create_connection(
            factory, "127.0.0.1", target, ssl=context, server_hostname=host
        )
    try:
        yield protocol
    finally:
        protocol.abort()
        await lost.wait()


@contextlib.asynccontextmanager
async def fake_agent(
    server: Server,
    agent_id: str = "a1",
    *,
    peer: Extensions = OURS,
    identifiers: str | None = None,
    context: ssl.SSLContext | None = None,
    token: str | None = None,
) -> AsyncIterator[Wire]:
    """An agent that is connected."""
    async with connected(server.agent_port, context=context) as protocol:
        wire = Wire()
        metadata = [("agentid", agent_id)]
        if identifiers is not None:
            metadata.append(("agentidentifiers", identifiers))
        if peer != extensions.NONE:
            metadata.append((extensions.KEY, peer.text()))
        if token is not None:
            metadata.append(("authorization", f"Bearer {token}"))
        before = len(server.core.backends)
        wire.open(protocol, AGENT_METHOD, tuple(metadata))
        await wire.answer
        assert len(server.core.backends) == before + 1
        yield wire


@contextlib.asynccontextmanager
async def proxy_stream(target: Path | int, metadata: Metadata = ()) -> AsyncIterator[Wire]:
    """A Proxy stream of a gRPC frontend."""
    async with connected(target) as protocol:
        wire = Wire()
        wire.open(protocol, PROXY_METHOD, metadata)
        yield wire


class Socket:
    """A CONNECT client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def stop_reading(self) -> None:
        """Takes nothing any more."""
        # uvloop's transports are asyncio's by their methods only
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def go_on_reading(self) -> None:
        """The opposite."""
        cast(asyncio.Transport, self.writer.transport).resume_reading()

    async def ask(self, address: str = "10.0.0.1:80", payload: bytes = b"") -> None:
        """Sends the request."""
        self.writer.write(b"CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % address.encode())
        if payload:
            self.writer.write(payload)
        await self.writer.drain()

    async def established(self) -> None:
        """Reads the 200."""
        assert await self.reader.readexactly(len(OK_200)) == OK_200

    async def rest(self) -> bytes:
        """Reads to the end."""
        return await self.reader.read()


@contextlib.asynccontextmanager
async def connect_socket(
    target: Path | int, *, context: ssl.SSLContext | None = None
) -> AsyncIterator[Socket]:
    """A connected CONNECT client, which is closed at the end."""
    if isinstance(target, Path):
        reader, writer = await asyncio.open_unix_connection(str(target))
    else:
        name = None if context is None else "localhost"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", target, ssl=context, server_hostname=name
        )
    try:
        yield Socket(reader, writer)
    finally:
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def nothing_left(server: Server) -> None:
    """Every gauge of the server is back at 0, but for its agents."""

    def empty() -> bool:
        core = server.core
        return not (
            core.established
            or core.pending
            or list(core.tunnels())
            or server.frontends.streams
            or server.frontends.sockets
            or server.frontends.waiting
            or server.frontends.closing
        )

    await until(empty, "nothing is left of any tunnel")
