"""The client of `bench.konnectivity`: tunnels by HTTP CONNECT on raw sockets.

The same driver runs against every pair and costs little more than its system calls.
"""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path
from typing import Final

from bench._tunnel_rate import PATIENCE_SECONDS, Rate, TunnelFailed, rate

_OK: Final = b"HTTP/1.1 200"
_BUFFER_BYTES: Final = 256 * 1024
_WARM_UP: Final = 20


def connect(path: Path, address: str, first: bytes = b"") -> socket.socket:
    """A tunnel by HTTP CONNECT, blocking. TunnelFailed."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(PATIENCE_SECONDS)
        sock.connect(str(path))
        sock.sendall(b"CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % address.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = sock.recv(4096)
            if not part:
                break
            answer += part
        if not answer.startswith(_OK):
            raise TunnelFailed(f"CONNECT {address}: {answer[:120]!r}")
        if first:
            sock.sendall(first)
    except OSError as error:
        sock.close()
        raise TunnelFailed(f"CONNECT {address}: {error}") from error
    except TunnelFailed:
        sock.close()
        raise
    return sock


def download(path: Path, address: str, size: int, connections: int) -> float:
    """Seconds that ``size`` bytes take through so many tunnels together."""
    share = size // connections
    order = b"d" + share.to_bytes(8, "big")
    tunnels = [connect(path, address) for _ in range(connections)]
    buffer = bytearray(_BUFFER_BYTES)
    epoll = select.epoll()
    left = {sock.fileno(): (sock, share) for sock in tunnels}
    try:
        began = time.perf_counter()
        for sock in tunnels:
            epoll.register(sock.fileno(), select.EPOLLIN)
            sock.sendall(order)
        while left:
            ready = epoll.poll(PATIENCE_SECONDS, 64)
            if not ready:
                raise TunnelFailed(f"download: nothing came for {PATIENCE_SECONDS:g} s")
            for fd, _ in ready:
                sock, rest = left[fd]
                count = sock.recv_into(buffer)
                if not count:
                    raise TunnelFailed(f"download: ended {rest} bytes too early")
                if rest == count:
                    epoll.unregister(fd)
                    del left[fd]
                else:
                    left[fd] = (sock, rest - count)
        return time.perf_counter() - began
    finally:
        epoll.close()
        for sock in tunnels:
            sock.close()


def upload(path: Path, address: str, size: int, connections: int) -> float:
    """As `download`, the other way; until the remote has said that it has all."""
    share = size // connections
    tunnels = [connect(path, address) for _ in range(connections)]
    block = memoryview(bytes(_BUFFER_BYTES))
    epoll = select.epoll()
    left = {sock.fileno(): (sock, share) for sock in tunnels}
    try:
        began = time.perf_counter()
        for sock in tunnels:
            sock.sendall(b"u" + share.to_bytes(8, "big"))
            sock.setblocking(False)
            epoll.register(sock.fileno(), select.EPOLLOUT)
        while left:
            ready = epoll.poll(PATIENCE_SECONDS, 64)
            if not ready:
                raise TunnelFailed(f"upload: nothing was taken for {PATIENCE_SECONDS:g} s")
            for fd, _ in ready:
                sock, rest = left[fd]
                if rest:
                    rest -= sock.send(block[: min(rest, len(block))])
                    left[fd] = (sock, rest)
                    if not rest:
                        epoll.modify(fd, select.EPOLLIN)
                elif sock.recv(1) == b"k":
                    epoll.unregister(fd)
                    del left[fd]
                else:
                    raise TunnelFailed("upload: the remote did not get everything")
        return time.perf_counter() - began
    finally:
        epoll.close()
        for sock in tunnels:
            sock.close()


def trips(path: Path, address: str, seconds: float) -> Rate:
    """64 bytes there and back on one tunnel, one after the other."""
    times = []
    with connect(path, address, b"e") as sock:
        for number in range(1 << 30):
            began = time.perf_counter()
            sock.sendall(b"x" * 64)
            got = 0
            while got < 64:
                part = len(sock.recv(64))
                if not part:
                    raise TunnelFailed("round trip: the tunnel has ended")
                got += part
            if number >= _WARM_UP:
                times.append(time.perf_counter() - began)
            if number == _WARM_UP:
                end = time.perf_counter() + seconds
            elif number > _WARM_UP and began > end:
                break
    return rate(times, sum(times))


def dials(path: Path, address: str, seconds: float, at_once: int, patience: float) -> Rate:
    """Tunnels opened and closed again, so many under way at a time.

    A rate of 0 when none is answered within ``patience`` seconds.
    """
    request = b"CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % address.encode()
    where = str(path)
    epoll = select.epoll()
    under_way: dict[int, tuple[socket.socket, float]] = {}
    times: list[float] = []
    now = time.perf_counter

    def start() -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        begun = now()
        sock.connect(where)
        sock.send(request)
        under_way[sock.fileno()] = (sock, begun)
        epoll.register(sock.fileno(), select.EPOLLIN)

    try:
        began = now()
        for _ in range(at_once):
            start()
        while True:
            ready = epoll.poll(patience, 64)
            if not ready:
                return rate(times, now() - began) if times else Rate(0, 0.0, 0.0, 0.0)
            for fd, _ in ready:
                sock, begun = under_way.pop(fd)
                answer = sock.recv(4096)
                if not answer.startswith(_OK):
                    sock.close()
                    raise TunnelFailed(f"CONNECT {address}: {answer[:120]!r}")
                times.append(now() - begun)
                sock.close()
                if now() - began < seconds:
                    start()
            if not under_way:
                return rate(times, now() - began)
    finally:
        epoll.close()
        for sock, _ in under_way.values():
            sock.close()
