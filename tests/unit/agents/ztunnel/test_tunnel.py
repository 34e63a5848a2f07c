"""Tunnels over TLS and HTTP/2: no byte is lost, whichever way they end."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.hbone.errors import ErrorCode
from tests.unit.agents.ztunnel.hbone_scene import Opener, Scene

Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def scene(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(loop, tmp_path)
    yield made
    made.close()


class Reader(threading.Thread):
    """Reads an application's socket to its end."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock
        self.data = bytearray()
        self.error: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            while piece := self.sock.recv(1 << 16):
                self.data += piece
        except OSError as error:
            self.error = error


def says(app: socket.socket, data: bytes) -> threading.Thread:
    """An application says all it has."""

    def run() -> None:
        app.sendall(data)
        app.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def joined(scene: Scene, until: Until, buffers: int | None = None) -> Opener:
    opener = scene.open(buffers)
    until(lambda: opener.tunnel is not None and scene.servers and scene.servers[-1].ends)
    return opener


def test_what_had_come_before_an_orderly_reset_is_given_to_the_application(
    scene: Scene, until: Until
) -> None:
    """RFC 9113 section 8.1: all has been said, and the rest of the request is not wanted."""
    near = joined(scene, until, buffers=4096)
    server = scene.servers[0]
    far = server.ends[0]
    sent = os.urandom(2 << 20)
    writer = says(far.app, sent)
    until(lambda: near.tunnel is not None and near.tunnel.received == len(sent))
    writer.join()
    stream = server.streams[0]
    until(lambda: stream.local_ended)
    server.core.reset(stream, ErrorCode.NO_ERROR)
    server.flush()
    until(lambda: near.stream is not None and near.stream.closed)
    reader = Reader(near.app)
    until(lambda: not reader.is_alive())
    assert reader.error is None
    assert bytes(reader.data) == sent
    near.app.close()
    until(lambda: near.over)
    assert near.error is None


def test_an_application_that_sends_on_still_gets_all_of_an_orderly_end(
    scene: Scene, until: Until
) -> None:
    near = joined(scene, until, buffers=4096)
    server = scene.servers[0]
    far = server.ends[0]
    sent = os.urandom(1 << 20)
    writer = says(far.app, sent)
    until(lambda: near.tunnel is not None and near.tunnel.received == len(sent))
    writer.join()
    until(lambda: server.streams[0].local_ended)
    server.core.reset(server.streams[0], ErrorCode.NO_ERROR)
    server.flush()
    near.app.sendall(b"more of the request")
    until(lambda: near.stream is not None and near.stream.closed)
    near.app.sendall(b"and more")
    reader = Reader(near.app)
    until(lambda: not reader.is_alive())
    assert reader.error is None
    assert bytes(reader.data) == sent
    near.app.close()
    until(lambda: near.over)
    assert near.error is None


@pytest.mark.parametrize("rcvbuf", [4096, 65536])
def test_a_connection_that_ends_with_its_last_tunnel_sends_all_of_it(
    scene: Scene, until: Until, rcvbuf: int
) -> None:
    """What the peer says meanwhile (window updates) must not make the kernel drop the rest."""
    scene.client_rcvbuf = rcvbuf
    near = joined(scene, until)
    server = scene.servers[0]
    far = server.ends[0]
    server.closing = True  # as a server does that drains
    near.app.shutdown(socket.SHUT_WR)
    until(lambda: server.streams[0].remote_ended)
    sent = os.urandom(6 << 20)
    reader = Reader(near.app)
    writer = says(far.app, sent)
    until(lambda: not reader.is_alive() and not writer.is_alive())
    assert reader.error is None
    assert bytes(reader.data) == sent
    until(lambda: near.over and far.over)
    assert near.error is None and far.error is None
    until(lambda: server.error is not None)


def test_a_client_that_ends_with_its_last_tunnel_sends_all_of_it(
    scene: Scene, until: Until
) -> None:
    scene.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    near = joined(scene, until)
    server = scene.servers[0]
    far = server.ends[0]
    scene.pool.leave(lambda: None)
    far.app.shutdown(socket.SHUT_WR)
    until(lambda: near.stream is not None and near.stream.remote_ended)
    sent = os.urandom(6 << 20)
    reader = Reader(far.app)
    writer = says(near.app, sent)
    until(lambda: not reader.is_alive() and not writer.is_alive())
    assert reader.error is None
    assert bytes(reader.data) == sent
    until(lambda: not scene.pool.connections)


def test_what_follows_urgent_data_is_not_left_behind(scene: Scene, until: Until) -> None:
    near = joined(scene, until)
    near.app.sendall(b"abc")
    near.app.send(b"!", socket.MSG_OOB)
    near.app.sendall(b"efg")
    far = scene.servers[0].ends[0]
    until(lambda: far.tunnel is not None and far.tunnel.received == 6)
    assert far.app.recv(100) == b"abcefg"
