"""Connections between proxies: their deadlines, and who waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.agents.ztunnel import transport as module
from nodenet.agents.ztunnel.transport import TransportLost
from nodenet.agents.ztunnel.tunnel import Tunnel
from nodenet.hbone.frames import MAX_WINDOW
from nodenet.identity.errors import HandshakeFailed
from tests.unit.agents.ztunnel.hbone_scene import Opener, Scene

Until = Callable[[Callable[[], object]], None]
SceneWith = Callable[..., Scene]

RESET = b"\1\0\0\0\0\0\0\0"


@pytest.fixture
def scene_with(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SceneWith]:
    """Makes a scene with other deadlines than the transport's own."""
    made: list[Scene] = []

    def make(**seconds: float) -> Scene:
        for name, value in seconds.items():
            monkeypatch.setattr(module, name, value)
        made.append(Scene(loop, tmp_path))
        return made[-1]

    yield make
    for scene in made:
        scene.close()


def joined(scene: Scene, until: Until) -> Opener:
    """An open tunnel."""
    opener = scene.open()
    until(lambda: opener.tunnel is not None)
    return opener


def deaf(scene: Scene) -> None:
    """The server reads nothing any more, and does not ask either."""
    transport = scene.servers[0].transport
    scene.poller.modify(transport.sock.fileno(), 0)
    scene.wires.pings.discard(transport)
    scene.wires.pongs.discard(transport)


def test_a_server_that_says_nothing_is_given_up(scene_with: SceneWith, until: Until) -> None:
    scene = scene_with(HANDSHAKE_SECONDS=0.1)
    scene.accepts = False
    opener = scene.open()
    until(lambda: opener.failures)
    ((error, retry),) = opener.failures
    assert isinstance(error, HandshakeFailed) and retry
    assert error.message == "tls error: no end of the handshake within 0.1 s"


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01"])
def test_a_client_that_says_too_little_is_cut(
    scene_with: SceneWith, until: Until, said: bytes
) -> None:
    scene = scene_with(HANDSHAKE_SECONDS=0.1)
    with socket.create_connection(scene.listener.getsockname()[:2]) as sock:
        sock.sendall(said)
        until(lambda: scene.servers and scene.servers[0].error)
        assert isinstance(scene.servers[0].error, HandshakeFailed)
        sock.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_a_handshake_byte_by_byte_has_one_deadline(scene_with: SceneWith, until: Until) -> None:
    """From its first byte to its last: each byte is no new beginning."""
    scene = scene_with(HANDSHAKE_SECONDS=0.1)
    began = time.monotonic()
    with socket.create_connection(scene.listener.getsockname()[:2]) as sock:

        def drip() -> bool:
            with contextlib.suppress(OSError):
                sock.send(b"\x16\x03\x01\x02\x00\x01" if not scene.servers else b"\0")
            return bool(scene.servers and scene.servers[0].error)

        until(drip)
    assert time.monotonic() - began < 5


def test_a_peer_that_answers_stays(scene_with: SceneWith, until: Until) -> None:
    """Without a byte of the application, for longer than a silent one would."""
    scene = scene_with(PING_SECONDS=0.1, PONG_SECONDS=0.6)
    opener = joined(scene, until)
    end = scene.loop.time() + 0.9
    until(lambda: scene.loop.time() > end)
    assert not opener.over
    opener.app.sendall(b"still here")
    server = scene.servers[0].ends[0].app
    until(lambda: select.select([server], [], [], 0)[0])
    assert server.recv(100) == b"still here"


def test_a_peer_that_goes_silent_is_lost(scene_with: SceneWith, until: Until) -> None:
    scene = scene_with(PING_SECONDS=0.2, PONG_SECONDS=0.3)
    opener = joined(scene, until)
    deaf(scene)
    until(lambda: opener.over)
    assert isinstance(opener.error, TransportLost)
    assert opener.error.message == "io error: no sign of life for 0.5 s"
    assert not scene.pool.connections
    with pytest.raises(ConnectionResetError):
        opener.app.recv(1)


def test_a_close_that_is_not_read_ends_all_the_same(scene_with: SceneWith, until: Until) -> None:
    """What is left to send gets a while, and then the connection is cut."""
    scene = scene_with(LINGER_SECONDS=0.1)
    opener = joined(scene, until)
    deaf(scene)
    (connection,) = scene.pool.connections
    transport = connection.transport
    assert transport is not None
    # as they are, the kernel's buffers may take more than the stream's window lets through
    transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    scene.servers[0].transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    opener.app.setblocking(False)

    def full() -> bool:
        with contextlib.suppress(BlockingIOError):
            opener.app.send(bytes(1 << 20))
        return transport.congested

    until(full)
    transport.close()
    assert not transport.over
    until(lambda: transport.over)


def _come_and_go(scene: Scene, until: Until) -> None:
    """A tunnel that has something to send, cannot, and is reset."""
    opener = joined(scene, until)
    tunnel = opener.tunnel
    assert tunnel is not None
    opener.app.send(b"x")
    until(lambda: tunnel._waiting)
    opener.app.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    opener.app.close()
    until(lambda: opener.over)
    scene.openers.remove(opener)


def test_tunnels_that_end_wait_no_more(scene_with: SceneWith, until: Until) -> None:
    """While the window of the connection is shut they may come and go without end."""
    scene = scene_with()
    first = joined(scene, until)
    core = scene.servers[0].core
    # nothing more is granted on the connection, whatever is consumed
    core._grant_at = MAX_WINDOW << 10
    first.app.setblocking(False)
    (connection,) = scene.pool.connections
    transport = connection.transport
    assert transport is not None and transport.core is not None
    server = scene.servers[0].ends[0].app
    server.setblocking(False)

    def shut() -> bool:
        with contextlib.suppress(BlockingIOError):
            first.app.send(bytes(1 << 18))
        with contextlib.suppress(BlockingIOError):
            server.recv(1 << 20)
        return transport.core is not None and transport.core.send_window <= 0

    until(shut)
    for _ in range(20):
        _come_and_go(scene, until)
    gc.collect()
    client_side = [
        each
        for each in gc.get_objects()
        if isinstance(each, Tunnel) and each._transport is transport
    ]
    assert len(client_side) == 1
