"""gRPC tunnels on blocking sockets: the least a client can cost, for measuring what it talks to.

The HTTP/2 core is ours (`nodenet.rpc`), around it are system calls only, as in `_tunnel_driver` by
HTTP CONNECT. To the server it is what kube-apiserver does, one call of ProxyService a tunnel.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench._tunnel_rate import PATIENCE_SECONDS, Rate, TunnelFailed, rate
from nodenet.konnectivity.client import SEND_BUFFER_BYTES
from nodenet.konnectivity.packets import (
    PROXY_METHOD,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    data_pieces,
    data_prefix,
    data_span,
    pull_packet,
    push_packet,
)
from nodenet.rpc import read_buffer
from nodenet.rpc.call import Buffer, CallHandler
from nodenet.rpc.connection import Connection, Role
from nodenet.rpc.limits import Limits
from nodenet.rpc.status import Status

#: Payload of one DATA.
BLOCK_BYTES: Final = 256 * 1024
#: Entries of one sendmsg(2), at most 1024.
_MOST_PIECES: Final = 512


class Wire:
    """A connection to a server's Unix socket, for any number of tunnels. A context manager."""

    def __init__(self, path: Path) -> None:
        self._buffer = read_buffer.shared()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(PATIENCE_SECONDS)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._sock.connect(str(path))
        except BaseException:
            self._sock.close()
            raise
        self.connection = Connection(Role.CLIENT, now=time.monotonic(), limits=Limits())

    def fileno(self) -> int:
        """Of the socket."""
        return self._sock.fileno()

    def close(self) -> None:
        """Ends it, and its tunnels with it."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def receive(self) -> None:
        """Waits for something from the server and tells it. TunnelFailed."""
        try:
            size = self._sock.recv_into(self._buffer.get())
        except OSError as error:
            raise TunnelFailed(f"gRPC tunnel: {error}") from error
        if not size:
            raise TunnelFailed("gRPC tunnel: the server closed the connection")
        self.connection.receive(self._buffer.filled(size), time.monotonic())

    def flush(self) -> None:
        """Sends what may be sent. TunnelFailed."""
        connection = self.connection
        while connection.pending:
            pieces = connection.flush()
            while pieces:
                try:
                    sent = self._sock.sendmsg(pieces[:_MOST_PIECES])
                except OSError as error:
                    raise TunnelFailed(f"gRPC tunnel: {error}") from error
                while pieces and sent >= len(pieces[0]):
                    sent -= len(pieces.pop(0))
                if sent:
                    pieces[0] = memoryview(pieces[0])[sent:]


class Dial(CallHandler):
    """One tunnel; it is dialled at once. ``told`` hears when it is up and when it is closed."""

    def __init__(self, wire: Wire, address: str, told: Callable[[Dial], None]) -> None:
        self.wire = wire
        self.connect_id = 0
        """0 before it is up."""
        self.over = ""
        """Why there is no tunnel any more."""
        self.began = time.perf_counter()
        self._told = told
        self._messages: deque[bytes] = deque()
        self.call = wire.connection.open(PROXY_METHOD, self)
        self.send(push_packet(DialRequest("tcp", address, random.getrandbits(62))))

    def send(self, message: bytes) -> None:
        """A message, with the next flush."""
        self._messages.append(message)
        self.call.want()

    def close(self) -> None:
        """Asks for the end."""
        self.send(push_packet(CloseRequest(self.connect_id)))

    # -- rpc.CallHandler --------------------------------------------------------------------------

    def received(self, message: bytes) -> None:
        """See `CallHandler`."""
        match pull_packet(message):
            case DialResponse(error, connect_id):
                self.connect_id = connect_id
                self.over = error
            case CloseResponse(error):
                self.over = f"closed {error}".rstrip()
                self.call.end()
            case Data(_, payload):
                self.payload(payload)
                return
            case other:
                self.over = f"{other} came"
        self._told(self)

    def payload(self, piece: Buffer) -> None:
        """What came of it."""

    def closed(self, status: Status) -> None:
        """See `CallHandler`."""
        if not self.over:
            self.over = str(status)
            self._told(self)

    def pull(self) -> Sequence[Buffer] | None:
        """See `CallHandler`."""
        return (self._messages.popleft(),) if self._messages else None


class Tunnel(Dial):
    """One for much payload, on a connection of its own; up when it is made. A context manager."""

    def __init__(self, path: Path, address: str) -> None:
        self.received_bytes = 0
        """Of payload."""
        self.first = b""
        """The first bytes of it."""
        self._left = 0
        self._block = memoryview(bytes(BLOCK_BYTES))
        wire = Wire(path)
        try:
            super().__init__(wire, address, lambda _: None)
            self._until(lambda: bool(self.connect_id))
        except BaseException:
            wire.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.wire:
            if error is None:
                self.close()
                self._until(lambda: self.over.startswith("closed"))

    def write(self, data: bytes) -> None:
        """Sends a little."""
        self.send(data_prefix(self.connect_id, len(data)) + data)
        self.wire.flush()

    def fill(self, size: int) -> None:
        """Sends so many zeros, and returns when they are on their way."""
        self._left = size
        self.call.want()
        self._until(lambda: not (self._left or self.call.unsent))

    def wait(self, size: int) -> None:
        """Returns when so much payload has come, since the beginning."""
        self._until(lambda: self.received_bytes >= size)

    def received(self, message: bytes) -> None:
        """See `CallHandler`."""
        span = data_span(message)
        if span is None:
            super().received(message)
        else:
            self.payload(message[span.start : span.end])

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        """See `CallHandler`."""
        found = data_pieces(pieces)
        if found is None:
            self.received(b"".join(pieces))
            return
        for piece in found[1]:
            self.payload(piece)

    def payload(self, piece: Buffer) -> None:
        """See `Dial`."""
        if not self.received_bytes:
            self.first = bytes(piece[:16])
        self.received_bytes += len(piece)

    def pull(self) -> Sequence[Buffer] | None:
        """See `CallHandler`."""
        message = super().pull()
        if message is not None:
            return message
        size = min(self._left, BLOCK_BYTES)
        if not size:
            return None
        self._left -= size
        return data_prefix(self.connect_id, size), self._block[:size]

    def _until(self, done: Callable[[], bool]) -> None:
        """Sends what may be sent, and reads, until it is so. TunnelFailed."""
        while True:
            self.wire.flush()
            if done():
                return
            if self.over:
                raise TunnelFailed(f"gRPC tunnel: {self.over}")
            self.wire.receive()


class _Dials:
    """Tunnels opened and closed again, see `dials`."""

    def __init__(self, path: Path, address: str, seconds: float, *, shared: bool) -> None:
        self._path = path
        self._address = address
        self._seconds = seconds
        self._epoll = select.epoll()
        self._wires: dict[int, Wire] = {}
        self._shared = self._wire() if shared else None
        self._under_way = 0
        self._times: list[float] = []
        self._ended: list[Dial] = []

    def run(self, at_once: int) -> Rate:
        """TunnelFailed."""
        try:
            began = time.perf_counter()
            for _ in range(at_once):
                self._start()
            if self._shared is not None:
                self._shared.flush()
            while self._under_way:
                ready = self._epoll.poll(PATIENCE_SECONDS, 64)
                if not ready:
                    raise TunnelFailed(f"gRPC: no dial was answered in {PATIENCE_SECONDS:g} s")
                for fd, _ in ready:
                    wire = self._wires[fd]
                    wire.receive()
                    self._end(time.perf_counter() - began < self._seconds)
                    if fd in self._wires:
                        wire.flush()
            return rate(self._times, time.perf_counter() - began)
        finally:
            self._epoll.close()
            for wire in self._wires.values():
                wire.close()

    def _wire(self) -> Wire:
        made = Wire(self._path)
        self._wires[made.fileno()] = made
        self._epoll.register(made.fileno(), select.EPOLLIN)
        return made

    def _start(self) -> None:
        self._under_way += 1
        wire = self._shared or self._wire()
        Dial(wire, self._address, self._told)
        if self._shared is None:
            wire.flush()

    def _told(self, dial: Dial) -> None:
        if dial.over.startswith("closed"):
            self._ended.append(dial)
        elif dial.over:
            raise TunnelFailed(f"gRPC dial: {dial.over}")
        else:
            self._times.append(time.perf_counter() - dial.began)
            dial.close()

    def _end(self, again: bool) -> None:
        ended, self._ended = self._ended, []
        for dial in ended:
            self._under_way -= 1
            if self._shared is None:
                dial.wire.flush()
                del self._wires[dial.wire.fileno()]
                dial.wire.close()
            if again:
                self._start()


def dials(path: Path, address: str, seconds: float, at_once: int, *, shared: bool) -> Rate:
    """As `_tunnel_driver.dials`; on one connection, or on one each as kube-apiserver does."""
    return _Dials(path, address, seconds, shared=shared).run(at_once)


def download(path: Path, address: str, size: int) -> float:
    """As `_tunnel_driver.download`, on one tunnel."""
    with Tunnel(path, address) as tunnel:
        began = time.perf_counter()
        tunnel.write(b"d" + size.to_bytes(8, "big"))
        tunnel.wait(size)
        return time.perf_counter() - began


def upload(path: Path, address: str, size: int) -> float:
    """As `_tunnel_driver.upload`, on one tunnel."""
    with Tunnel(path, address) as tunnel:
        began = time.perf_counter()
        tunnel.write(b"u" + size.to_bytes(8, "big"))
        tunnel.fill(size)
        tunnel.wait(1)
        if tunnel.first != b"k":
            raise TunnelFailed("upload: the remote did not get everything")
        return time.perf_counter() - began
