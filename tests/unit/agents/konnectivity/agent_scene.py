"""A server that a test plays, with its agents in the same loop; over TLS, as in a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from nodenet.agents.konnectivity import agent_config
from nodenet.agents.konnectivity.agent_config import AgentConfig
from nodenet.agents.konnectivity.agent_remote import Sockets
from nodenet.agents.konnectivity.agent_set import ClientSet, Failure
from nodenet.konnectivity import extensions
from nodenet.konnectivity.extensions import OURS, Extensions
from nodenet.konnectivity.packets import (
    CloseRequest,
    Data,
    DialRequest,
    DialResponse,
    Packet,
    pull_packet,
    push_packet,
)
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import Call, CallHandler
from nodenet.rpc.connection import Role
from nodenet.rpc.status import Code, Status
from tests.interop.certificates import Certificates

T = TypeVar("T")

#: Of the loop, in `until`.
_TURNS: Final = 100


def run(work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
    """Runs a test's coroutine, for at most so long."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Returns when it is so; AssertionError says what was not."""
    try:
        async with asyncio.timeout(seconds):
            for turn in itertools.count():
                if condition():
                    return
                # most of what is waited for comes within some turns of the loop
                await asyncio.sleep(0 if turn < _TURNS else 0.005)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


class Stream(CallHandler):
    """One agent's call, as the server sees it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.metadata = dict(call.metadata)
        self.packets: asyncio.Queue[Packet] = asyncio.Queue()
        self.over: Status | None = None

    def received(self, message: bytes) -> None:
        self.packets.put_nowait(pull_packet(message))

    def closed(self, status: Status) -> None:
        self.over = status

    def send(self, *packets: Packet) -> None:
        """Sends packets."""
        for packet in packets:
            self.call.send(push_packet(packet))

    async def next(self) -> Packet:
        """The next packet of the agent."""
        return await self.packets.get()

    async def connect(self, address: str, random: int = 1) -> int:
        """Dials; the connection id."""
        self.send(DialRequest("tcp", address, random))
        answer = await self.next()
        assert isinstance(answer, DialResponse) and not answer.error, answer
        return answer.connect_id

    async def bytes_of(self, connect_id: int, size: int) -> bytes:
        """So many bytes of a tunnel."""
        got = b""
        while len(got) < size:
            packet = await self.next()
            assert isinstance(packet, Data) and packet.connect_id == connect_id, packet
            got += packet.payload
        return got

    def close(self, connect_id: int) -> None:
        """CLOSE_REQ."""
        self.send(CloseRequest(connect_id))


class FakeServer:
    """Accepts agents as ``server_id``; set the attributes before they come."""

    def __init__(self, server_id: str, count: int = 1, peer: Extensions = OURS) -> None:
        self.server_id = server_id
        self.count: str | int = count
        self.peer = peer
        self.streams: list[Stream] = []
        self.silent = False
        """Takes the call and says nothing."""
        self.refusal: Status | None = None
        self.protocols: list[RpcProtocol] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def open(self) -> list[Stream]:
        """Streams that are not over."""
        return [stream for stream in self.streams if stream.over is None]

    async def start(self, certificates: Certificates, port: int = 0) -> None:
        """Listens on a port of 127.0.0.1."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server.cert, certificates.server.key)
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol, "127.0.0.1", port, ssl=context
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _protocol(self) -> RpcProtocol:
        return RpcProtocol(Role.SERVER, accept=self._accept, on_made=self.protocols.append)

    def _accept(self, call: Call) -> CallHandler | None:
        stream = Stream(call)
        self.streams.append(stream)
        if self.refusal is not None:
            call.end(self.refusal)
        elif not self.silent:
            metadata = [("serverid", self.server_id), ("servercount", str(self.count))]
            if self.peer != extensions.NONE:
                metadata.append((extensions.KEY, self.peer.text()))
            call.answer(tuple(metadata))
        return stream

    async def stop(self) -> None:
        """Ends everything at once."""
        if self._server is not None:
            self._server.close()
        for protocol in self.protocols:
            protocol.abort()
        self.protocols.clear()
        await asyncio.sleep(0)


REFUSED = Status(Code.UNKNOWN, "Failed to validate authentication token")


def config_for(certificates: Certificates, port: int, *flags: str) -> AgentConfig:
    """An agent of a server at a port of this host."""
    return agent_config.load(
        [
            f"--ca-cert={certificates.ca}",
            f"--agent-cert={certificates.client.cert}",
            f"--agent-key={certificates.client.key}",
            f"--proxy-server-port={port}",
            "--agent-id=agent-1",
            "--sync-interval=20ms",
            "--sync-interval-cap=200ms",
            *flags,
        ],
        {},
    )


class Failures(dict[str, Failure]):
    """An agent's failures, also those that a new connection takes back before anybody looks."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def __setitem__(self, address: str, failure: Failure) -> None:
        self.said.append(failure.text)
        super().__setitem__(address, failure)


@contextlib.asynccontextmanager
async def agent(config: AgentConfig) -> AsyncIterator[ClientSet]:
    """A client set that runs, and ends with the block."""
    sockets = Sockets(asyncio.get_running_loop())
    clients = ClientSet(config, sockets, rng=Random(1))
    clients.failures = Failures()
    try:
        async with asyncio.TaskGroup() as tasks:
            work = tasks.create_task(clients.run(), name="client set")
            try:
                yield clients
            finally:
                work.cancel()
                clients.close()
        await until(lambda: not len(sockets.poller), "every connection is over")
    finally:
        sockets.close()


def said(clients: ClientSet) -> list[str]:
    """The texts of all failures that there were."""
    assert isinstance(clients.failures, Failures)
    return clients.failures.said


async def told(clients: ClientSet, text: str) -> None:
    """Returns when some address has had a failure that says ``text``."""
    await until(lambda: any(text in each for each in said(clients)), f"told: {text}")


def token_file(folder: Path, text: str) -> Path:
    """A file with a token."""
    path = folder / "token"
    path.write_text(text)
    return path
