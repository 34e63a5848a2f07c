"""What the tunnels of `bench.konnectivity` lead to: one process, one epoll, any number of ends.

    python -m bench._tunnel_remote

Prints its port and serves until its standard input ends. The first byte of a connection says what
it is: ``e`` echo; ``u`` and eight bytes: takes so many, then says ``k``; ``d`` and eight bytes:
sends so many; ``x`` reads nothing any more, until another connection says ``r``. Without a byte it
just waits for the end.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Final

_BLOCK: Final = memoryview(bytes(256 * 1024))
_BUFFER: Final = memoryview(bytearray(256 * 1024))


class _End:
    """One connection."""

    __slots__ = ("command", "left", "sock", "start")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.command = b""
        self.start = b""
        self.left = 0

    def readable(self, epoll: select.epoll) -> bool:
        """False: it is over."""
        size = self.sock.recv_into(_BUFFER)
        if not size:
            return False
        data = b""
        if not self.command:
            data = self._begin(bytes(_BUFFER[:size]), epoll)
            size = len(data)
        if self.command == b"e" and size:
            self.sock.setblocking(True)
            self.sock.sendall(data or _BUFFER[:size])
            self.sock.setblocking(False)
        elif self.command == b"u":
            self.left -= size
            if self.left <= 0:
                self.sock.send(b"k")
        return True

    def _begin(self, data: bytes, epoll: select.epoll) -> bytes:
        data = self.start + data
        command = data[:1]
        if command in (b"u", b"d"):
            if len(data) < 9:
                self.start = data
                return b""
            self.left = int.from_bytes(data[1:9], "big")
            data = data[9:]
            if command == b"d":
                epoll.modify(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        else:
            data = data[1:]
            if command == b"x":
                epoll.modify(self.sock.fileno(), 0)
        self.command = command
        return data

    def writable(self, epoll: select.epoll) -> None:
        """Sends on."""
        while self.left:
            try:
                self.left -= self.sock.send(_BLOCK[: min(self.left, len(_BLOCK))])
            except BlockingIOError:
                return
        epoll.modify(self.sock.fileno(), select.EPOLLIN)


def main() -> None:
    """See the module."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    epoll.register(0, select.EPOLLIN)
    ends: dict[int, _End] = {}
    while True:
        for fd, mask in epoll.poll(-1, 256):
            if fd == 0:
                os._exit(0 if not os.read(0, 1) else 1)
            if fd == listener.fileno():
                _accept(listener, epoll, ends)
                continue
            end = ends.get(fd)
            if end is None:
                continue
            try:
                alive = True
                if mask & select.EPOLLOUT:
                    end.writable(epoll)
                if mask & ~select.EPOLLOUT:
                    alive = end.command != b"x" and end.readable(epoll)
            except BlockingIOError:
                continue
            except OSError:
                alive = False
            gone = [end] if not alive else []
            if end.command == b"r":
                gone = [each for each in ends.values() if each.command in (b"r", b"x")]
            for each in gone:
                del ends[each.sock.fileno()]
                epoll.unregister(each.sock.fileno())
                each.sock.close()


def _accept(listener: socket.socket, epoll: select.epoll, ends: dict[int, _End]) -> None:
    for _ in range(64):
        try:
            sock, _address = listener.accept()
        except BlockingIOError:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        ends[sock.fileno()] = _End(sock)
        epoll.register(sock.fileno(), select.EPOLLIN)


if __name__ == "__main__":
    main()
