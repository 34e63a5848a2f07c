"""Connections on the poller and the peers that a test plays, on event loops of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import sys
from _socket import socket as RawSocket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar, cast

import uvloop

from nodenet.agents.konnectivity.poller_transport import Acceptor, PollerTransport
from nodenet.agents.konnectivity.unix_transport import UnixTransport, serve_unix
from nodenet.agents.ztunnel.poller import Poller, Target
from tests.unit.agents.konnectivity.agent_scene import until

MUCH = random.Random(1).randbytes(1 << 20)
"""More than any Unix socket here holds."""

LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


#: By their sizes, for all protocols: what is read is copied at once.
_BUFFERS: Final[dict[int, memoryview]] = {}


class Recorder(asyncio.BufferedProtocol):
    """Keeps what it is told and then does what it was given to do."""

    transport: PollerTransport
    room = 256 << 10
    """Bytes that one read may bring."""

    def __init__(
        self,
        *,
        made: Callable[[Self], object] = lambda me: None,
        data: Callable[[Self, bytes], object] = lambda me, data: None,
        eof: Callable[[Self], bool] = lambda me: False,
        paused: Callable[[Self], object] = lambda me: None,
        resumed: Callable[[Self], object] = lambda me: None,
        lost: Callable[[Self], object] = lambda me: None,
    ) -> None:
        self.ends = 0
        self.flow: list[str] = []
        self.lost: list[Exception | None] = []
        self.lost_within_a_call = False
        self._calls = 0
        self._got = bytearray()
        self._made: Callable[[Any], object] = made
        self._data: Callable[[Any, bytes], object] = data
        self._eof: Callable[[Any], bool] = eof
        self._paused: Callable[[Any], object] = paused
        self._resumed: Callable[[Any], object] = resumed
        self._lost: Callable[[Any], object] = lost

    @property
    def got(self) -> bytes:
        return bytes(self._got)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(PollerTransport, transport)
        self._call(self._made, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFERS.setdefault(self.room, memoryview(bytearray(self.room)))

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(_BUFFERS[self.room][:nbytes])
        self._got += data
        self._call(self._data, self, data)

    def eof_received(self) -> bool:
        self.ends += 1
        return bool(self._call(self._eof, self))

    def pause_writing(self) -> None:
        self.flow.append("pause")
        self._call(self._paused, self)

    def resume_writing(self) -> None:
        self.flow.append("resume")
        self._call(self._resumed, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.lost_within_a_call |= self._calls > 0
        self._lost(self)

    def _call(self, hook: Callable[..., object], *arguments: object) -> object:
        self._calls += 1
        try:
            return hook(*arguments)
        finally:
            self._calls -= 1


def echo(me: Recorder, data: bytes) -> None:
    me.transport.write(data)


def fail(*_args: object) -> NoReturn:
    raise ValueError("a bug")


def listens_on(_me: Recorder) -> bool:
    """Of `eof_received`."""
    return True


@contextlib.contextmanager
def freed(*kinds: type) -> Iterator[None]:
    """Fails when one is left of those made inside, which only the garbage collector would find."""

    def there() -> list[object]:
        return [each for each in gc.get_objects() if type(each) in kinds]

    gc.disable()
    try:
        before = there()  # held, so that none that goes makes up for one that stays
        yield
        known = {id(each) for each in before}
        left = [type(each).__name__ for each in there() if id(each) not in known]
    finally:
        gc.enable()
    assert left == []


class Counting(Poller):
    """Knows how often it was woken, and what a test's own parts have found wrong in their turn."""

    turns = 0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.wrong: list[AssertionError] = []

    def _turn(self) -> None:
        self.turns += 1
        super()._turn()

    def _failed(self, target: Target) -> None:
        error = sys.exception()
        if isinstance(error, AssertionError):
            self.wrong.append(error)
        super()._failed(target)


class Scene:
    """A poller, its connections, and the sockets of their peers."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.poller = Counting(self.loop)
        self.protocols: list[Recorder] = []
        self.servers: list[Acceptor] = []
        self._peers: list[socket.socket] = []

    async def sleeps(self) -> None:
        """Fails when the loop is woken again and again."""
        before = -1
        for _ in range(20):  # what is on its way comes first
            if before == self.poller.turns:
                break
            before = self.poller.turns
            for _ in range(50):
                await asyncio.sleep(0)
        assert self.poller.turns == before, "nothing is told"

    async def close(self) -> None:
        """Ends what the test has left open."""
        for server in self.servers:
            server.close()
        for protocol in self.protocols:
            if not protocol.lost and hasattr(protocol, "transport"):
                protocol.transport.abort()
        for peer in self._peers:
            peer.close()
        await until(lambda: not len(self.poller), "nothing is watched", 5)
        self.poller.close()

    def keep(self, sock: socket.socket) -> socket.socket:
        """The same socket, closed at the end."""
        sock.setblocking(False)
        self._peers.append(sock)
        return sock


class UnixScene(Scene):
    """Over Unix sockets; the listener's is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "s"

    def connect(self, protocol: Recorder, first: bytes = b"") -> socket.socket:
        """The peer of a new connection, which has sent its first bytes before it is served."""
        near, far = socket.socketpair()
        self.keep(far).send(first)
        sock = RawSocket(near.family, near.type | socket.SOCK_NONBLOCK, 0, near.detach())
        self.protocols.append(protocol)
        UnixTransport(self.loop, self.poller, sock).start(protocol)
        return far

    def dial(self, first: bytes) -> socket.socket:
        """A client of the listener, which has sent its first bytes."""
        client = self.keep(socket.socket(socket.AF_UNIX))
        client.connect(str(self.path))
        client.send(first)
        return client

    def open(self) -> socket.socket:
        """The listening socket."""
        sock = self.keep(socket.socket(socket.AF_UNIX))
        sock.bind(str(self.path))
        sock.listen(1024)
        return sock

    def serve(self, make: Callable[[], Recorder], sock: socket.socket | None = None) -> Acceptor:
        """A listener whose protocols are kept."""

        def factory() -> Recorder:
            self.protocols.append(make())
            return self.protocols[-1]

        self.servers.append(serve_unix(self.poller, sock or self.open(), factory))
        return self.servers[-1]


S = TypeVar("S", bound=Scene)


def on_loop(
    name: str, make: Callable[[], S]
) -> Callable[[Callable[[S], Coroutine[Any, Any, None]]], None]:
    """Runs tests on a loop of `LOOPS`; no descriptor and no error of a callback is left."""
    errors: list[dict[str, Any]] = []

    async def bounded(work: Callable[[S], Coroutine[Any, Any, None]]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: errors.append(what))
        async with asyncio.timeout(30):
            before = descriptors()
            scene = make()
            try:
                await work(scene)
            finally:
                await scene.close()
            assert descriptors() == before, "every descriptor is closed"
            assert scene.poller.wrong == []

    def call(work: Callable[[S], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
            runner.run(bounded(work))
        assert not errors

    return call


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def take(peer: socket.socket, size: int | None = None) -> bytes:
    """So many bytes that a peer gets, or all until the end."""
    loop = asyncio.get_running_loop()
    got = bytearray()
    while size is None or len(got) < size:
        part = await loop.sock_recv(peer, 100_000 if size is None else size - len(got))
        if not part:
            assert size is None, "the end comes after them"
            break
        got += part
    return bytes(got)


async def over(protocol: Recorder) -> Exception | None:
    """Why a connection is over; nothing is told after that."""
    await until(lambda: bool(protocol.lost), "it is over")
    await asyncio.sleep(0)
    assert len(protocol.lost) == 1
    assert not protocol.lost_within_a_call, "a protocol does not expect it there"
    return protocol.lost[0]


def fill(transport: PollerTransport) -> bytes:
    """What had to be written until something waits."""
    filled = bytearray()
    while not transport.get_write_buffer_size():
        transport.write(MUCH[:10_000])
        filled += MUCH[:10_000]
    return bytes(filled)
