"""What an agent's sockets owe their remotes, and read from them: the core without a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from nodenet.agents.konnectivity import agent_remote
from nodenet.agents.konnectivity.agent_remote import Sockets, StreamRemotes
from nodenet.konnectivity.agent_core import AgentCore
from nodenet.konnectivity.agent_tunnel import Counts
from nodenet.konnectivity.extensions import NONE
from nodenet.konnectivity.packets import (
    CloseRequest,
    Data,
    DialRequest,
    DialResponse,
    Packet,
    pull_packet,
    push_packet,
)
from tests.unit.agents.konnectivity.agent_scene import run, until

MUCH = bytes(range(256)) * (40 << 10)
"""More than the two sockets hold."""
_KERNEL_BYTES = 64 << 10


class Line:
    """The stream to a server that sends whatever there is."""

    def want(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


class Scene:
    """An agent's core, and one remote that it has dialled."""

    def __init__(self, sockets: Sockets, listener: socket.socket) -> None:
        self.sockets = sockets
        remotes = StreamRemotes(sockets)
        self.core = remotes.core = AgentCore(Line(), remotes, peer=NONE, counts=Counts())
        self._listener = listener
        self._loop = asyncio.get_running_loop()

    async def dial(self) -> tuple[int, socket.socket]:
        """A tunnel, and the remote's end of it."""
        host, port = self._listener.getsockname()
        self.tell(DialRequest("tcp", f"{host}:{port}", 1))
        remote, _ = await self._loop.sock_accept(self._listener)
        answer = await self.next()
        assert isinstance(answer, DialResponse) and not answer.error
        return answer.connect_id, remote

    def tell(self, *packets: Packet) -> None:
        """Packets of the server."""
        for packet in packets:
            self.core.receive(push_packet(packet), monotonic())

    async def next(self) -> Packet:
        """The next packet for the server."""
        found: list[Packet] = []

        def pulled() -> bool:
            pieces = self.core.pull()
            if pieces is not None:
                found.append(pull_packet(b"".join(pieces)))
            return bool(found)

        await until(pulled, "there is a packet for the server", 5)
        return found[0]

    async def data(self, size: int) -> bytes:
        """So many bytes of the remote, as the server gets them."""
        got = b""
        while len(got) < size:
            packet = await self.next()
            assert isinstance(packet, Data)
            got += packet.payload
        return got

    def close_owing(self, tunnel: int) -> None:
        """The server ends a tunnel whose remote cannot have taken everything."""
        for at in range(0, len(MUCH), 1 << 20):
            self.tell(Data(tunnel, MUCH[at : at + (1 << 20)]))
        self.tell(CloseRequest(tunnel))
        assert self.sockets.owing and self.sockets.unfinished == 1


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    sockets = Sockets(asyncio.get_running_loop())
    with socket.socket() as listener:
        # what is accepted has it too
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        made = Scene(sockets, listener)
        try:
            yield made
        finally:
            made.core.lost()
            sockets.close()


def test_what_follows_urgent_data_is_read() -> None:
    """Each read stops at the mark, with more behind it (tcp(7))."""

    async def work() -> None:
        async with scene() as made:
            tunnel, remote = await made.dial()
            with remote:
                for round_ in range(20):
                    remote.send(b"abc")
                    remote.send(b"X", socket.MSG_OOB)
                    remote.send(b"def")
                    assert await made.data(6) == b"abcdef", f"round {round_}"
            made.tell(CloseRequest(tunnel))

    run(work())


def test_a_remote_that_takes_some_now_and_then_gets_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_remote, "LEAVE_SECONDS", 0.15)

    async def work() -> None:
        async with scene() as made:
            tunnel, remote = await made.dial()
            with remote:
                made.close_owing(tunnel)
                got, began = bytearray(), made.sockets.loop.time()
                while made.sockets.loop.time() - began < 0.6:
                    got += await made.sockets.loop.sock_recv(remote, 128 << 10)
                    await asyncio.sleep(0.02)
                assert made.sockets.owing, "it is a test of a slow one"
                while part := await made.sockets.loop.sock_recv(remote, 1 << 20):
                    got += part
                assert got == MUCH
            await until(lambda: made.sockets.unfinished == 0, "it is over")

    run(work())


@pytest.mark.parametrize("speaks", [False, True])
def test_what_the_kernel_has_for_a_remote_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, speaks: bool
) -> None:
    """A socket that is closed answers what comes with a reset, and that takes what is unread."""
    monkeypatch.setattr(agent_remote, "GOODBYE_SECONDS", 0.1)
    monkeypatch.setattr(agent_remote, "LEAVE_SECONDS", 5.0)

    async def work() -> None:
        async with scene() as made:
            tunnel, remote = await made.dial()
            with remote:
                # one that the two sockets hold, and the remote's does not
                made.tell(Data(tunnel, MUCH[: 1 << 20]), CloseRequest(tunnel))
                assert not made.sockets.owing and made.sockets.unfinished == 1
                for _ in range(8):
                    await asyncio.sleep(0.05)
                    if speaks:
                        remote.send(b"still here")
                assert made.sockets.unfinished == 1
                got = bytearray()
                while part := await made.sockets.loop.sock_recv(remote, 1 << 20):
                    got += part
                assert got == MUCH[: 1 << 20]
                await until(lambda: made.sockets.unfinished == 0, "it has all, and its time")

    run(work())


def test_a_remote_that_takes_nothing_is_reset(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_remote, "LEAVE_SECONDS", 0.1)
    caplog.set_level(logging.INFO)

    async def work() -> None:
        async with scene() as made:
            tunnel, remote = await made.dial()
            with remote:
                made.close_owing(tunnel)
                await until(lambda: made.sockets.unfinished == 0, "it is cut")
                with pytest.raises(ConnectionResetError):
                    while await made.sockets.loop.sock_recv(remote, 1 << 20):
                        pass
        assert any("bytes were never taken" in each for each in caplog.messages)

    run(work())
