"""Remotes that an agent dials in the tests: one thread accepts, one serves each connection."""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Self


class Remote:
    """Listens on a port of 127.0.0.1 and runs ``serve`` for each connection, which it closes."""

    def __init__(self, serve: Callable[[socket.socket], None], *, host: str = "127.0.0.1") -> None:
        self._serve = serve
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.accepted = 0
        self.closing = False
        self._thread = threading.Thread(target=self._accept, name="remote", daemon=True)
        self._thread.start()

    @property
    def open(self) -> int:
        """Connections being served."""
        with self._lock:
            return len(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.closing = True
        # wakes accept(); close() alone does not
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(sock)
                self.accepted += 1
            threading.Thread(target=self._run, args=(sock,), daemon=True).start()

    def _run(self, sock: socket.socket) -> None:
        with sock:
            try:
                self._serve(sock)
            except OSError:
                pass
            finally:
                with self._lock:
                    self._open.discard(sock)


def echo(sock: socket.socket) -> None:
    """Sends back what comes, until it ends."""
    while data := sock.recv(65_536):
        sock.sendall(data)


class Sink:
    """Takes everything and keeps the size and the digest of each connection."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str]] = []
        self._changed = threading.Condition()

    def __call__(self, sock: socket.socket) -> None:
        size, digest = 0, hashlib.sha256()
        try:
            while data := sock.recv(262_144):
                size += len(data)
                digest.update(data)
        finally:
            with self._changed:
                self.done.append((size, digest.hexdigest()))
                self._changed.notify_all()

    def wait(self, count: int, seconds: float = 30.0) -> list[tuple[int, str]]:
        """What ``count`` connections have brought."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.done) >= count, seconds), (
                f"{len(self.done)} of {count} connections have ended"
            )
            return list(self.done)


def digest_server(sock: socket.socket) -> None:
    """Reads to the end, then answers with the digest: what half-close is for."""
    digest = hashlib.sha256()
    while data := sock.recv(65_536):
        digest.update(data)
    sock.sendall(digest.hexdigest().encode())


def banner(text: bytes) -> Callable[[socket.socket], None]:
    """Speaks first, then echoes."""

    def serve(sock: socket.socket) -> None:
        sock.sendall(text)
        echo(sock)

    return serve


def source(size: int, *, asked: bool = False) -> Callable[[socket.socket], None]:
    """Sends ``size`` bytes and closes; with ``asked`` it waits for a first byte before."""

    def serve(sock: socket.socket) -> None:
        if asked:
            sock.recv(1)
        block = bytes(range(256)) * 1024
        left = size
        while left > 0:
            sock.sendall(block[: min(left, len(block))])
            left -= len(block)

    return serve


class Deaf:
    """Reads nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        self.go.wait(120)
        while sock.recv(65_536):
            pass


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """An address that answers no SYN, as a host behind a firewall: its backlog is full."""
    with socket.socket() as hole, socket.socket() as filler:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        filler.connect(hole.getsockname())
        # the client's end may be connected before the listener has the connection
        assert select.select([hole], [], [], 30)[0]
        yield f"127.0.0.1:{hole.getsockname()[1]}"
