"""Peers that ask and ask and never read an answer."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.agents.ztunnel import transport
from nodenet.hbone import frames, hpack_codec
from nodenet.hbone.settings import LocalSettings, Role
from tests.unit.agents.ztunnel.hbone_scene import Scene

Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def scene(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """One with small buffers, so that a little is a flood."""
    monkeypatch.setattr(transport, "MAX_UNREAD_BYTES", 16 * 1024)
    made = Scene(loop, tmp_path)
    made.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield made
    made.close()


class Flood(threading.Thread):
    """Sends one thing all the time and never reads, until it is cut off."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._context = scene.client_context
        self._address = scene.listener.getsockname()
        self.sent = 0
        self.start()

    def run(self) -> None:
        with socket.socket() as sock:
            sock.settimeout(20)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(self._address)
            with contextlib.suppress(OSError), self._context.wrap_socket(sock) as secured:
                secured.sendall(LocalSettings().opening(Role.CLIENT))
                while True:
                    self.sent += self.more(secured)

    def more(self, sock: ssl.SSLSocket) -> int:
        """Sends some more; how many of them."""
        raise NotImplementedError


class Requests(Flood):
    """Asks for tunnels that are refused."""

    def more(self, sock: ssl.SSLSocket) -> int:
        """See `Flood`."""
        block = hpack_codec.connect(b"1.2.3.4:80")
        flags, first = frames.END_HEADERS | frames.END_STREAM, 2 * self.sent + 1
        requests = (
            frames.header(frames.HEADERS, flags, first + 2 * i, len(block)) + block
            for i in range(1000)
        )
        sock.sendall(b"".join(requests))
        return 1000


class KeyUpdates(Flood):
    """Wants new keys, each time with an answer (RFC 8446 section 4.6.3)."""

    def more(self, sock: ssl.SSLSocket) -> int:
        """See `Flood`."""
        libssl = ctypes.CDLL("libssl.so.3")
        raw = sock._sslobj  # type: ignore[attr-defined]
        # PyObject_HEAD, the socket's weak reference, SSL*
        handle = ctypes.c_void_p.from_address(id(raw) + 3 * ctypes.sizeof(ctypes.c_void_p))
        for _ in range(500):
            if libssl.SSL_key_update(handle, 1) != 1:
                raise OSError("no key update")
            sock.sendall(frames.window_update(0, 1))
        return 500


@pytest.mark.parametrize("flood", [Requests, KeyUpdates])
def test_who_never_reads_is_cut_off(scene: Scene, until: Until, flood: type[Flood]) -> None:
    scene.refuses = 401
    sender = flood(scene)
    until(lambda: not sender.is_alive())
    assert sender.sent
    [server] = scene.servers
    until(lambda: server.error is not None)
    assert str(server.error) == "io error: the peer does not read"
