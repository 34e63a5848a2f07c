"""A gRPC tunnel on a blocking socket: the least a client can cost, for measuring what it talks to.

The HTTP/2 core is ours (`nodenet.rpc`), around it are system calls only, as in `_tunnel_driver` by
HTTP CONNECT. To the server it is what kube-apiserver does, one call of ProxyService a tunnel.
"""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from nodenet.errors import NodenetError
from nodenet.konnectivity.client import SEND_BUFFER_BYTES
from nodenet.konnectivity.packets import (
    PROXY_METHOD,
    CloseRequest,
    CloseResponse,
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

#: No progress for so long is a failure.
PATIENCE_SECONDS: Final = 10.0
#: Payload of one DATA.
BLOCK_BYTES: Final = 256 * 1024
#: Entries of one sendmsg(2), at most 1024.
_MOST_PIECES: Final = 512


class TunnelFailed(NodenetError):
    """A tunnel could not be opened, or did not carry what was sent."""


class Tunnel(CallHandler):
    """One tunnel; the constructor dials. A context manager."""

    def __init__(self, path: Path, address: str) -> None:
        self.received_bytes = 0
        """Of payload."""
        self.first = b""
        """The first bytes of it."""
        self._random = random.getrandbits(62)
        self._connect_id = 0
        self._closed = False
        self._over: str | None = None
        self._messages: deque[bytes] = deque()
        self._left = 0
        self._block = memoryview(bytes(BLOCK_BYTES))
        self._buffer = read_buffer.shared()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(PATIENCE_SECONDS)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._sock.connect(str(path))
            self._connection = Connection(Role.CLIENT, now=time.monotonic(), limits=Limits())
            self._call = self._connection.open(PROXY_METHOD, self)
            self._send(push_packet(DialRequest("tcp", address, self._random)))
            self._until(lambda: bool(self._connect_id))
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._send(push_packet(CloseRequest(self._connect_id)))
                self._until(lambda: self._closed)
        finally:
            self._sock.close()

    def write(self, data: bytes) -> None:
        """Sends a little."""
        self._send(data_prefix(self._connect_id, len(data)) + data)

    def fill(self, size: int) -> None:
        """Sends so many zeros, and returns when they are on their way."""
        self._left = size
        self._call.want()
        self._until(lambda: not (self._left or self._call.unsent))

    def wait(self, size: int) -> None:
        """Returns when so much payload has come, since the beginning."""
        self._until(lambda: self.received_bytes >= size)

    # -- rpc.CallHandler --------------------------------------------------------------------------

    def received(self, message: bytes) -> None:
        """See `CallHandler`."""
        span = data_span(message)
        if span is not None:
            self._payload(message[span.start : span.end])
            return
        match pull_packet(message):
            case DialResponse(error, connect_id):
                if error:
                    self._over = error
                self._connect_id = connect_id
            case CloseResponse(error):
                self._closed = True
                self._over = self._over or f"closed {error}".rstrip()
            case other:
                self._over = f"{other} came"

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        """See `CallHandler`."""
        found = data_pieces(pieces)
        if found is None:
            self.received(b"".join(pieces))
            return
        for piece in found[1]:
            self._payload(piece)

    def _payload(self, piece: Buffer) -> None:
        if not self.received_bytes:
            self.first = bytes(piece[:16])
        self.received_bytes += len(piece)

    def closed(self, status: Status) -> None:
        """See `CallHandler`."""
        self._over = self._over or str(status)

    def pull(self) -> Sequence[Buffer] | None:
        """See `CallHandler`."""
        if self._messages:
            return (self._messages.popleft(),)
        size = min(self._left, BLOCK_BYTES)
        if not size:
            return None
        self._left -= size
        return data_prefix(self._connect_id, size), self._block[:size]

    # -- the socket -------------------------------------------------------------------------------

    def _send(self, message: bytes) -> None:
        self._messages.append(message)
        self._call.want()
        self._flush()

    def _until(self, done: Callable[[], bool]) -> None:
        """Sends what may be sent, and reads, until it is so. TunnelFailed."""
        while True:
            self._flush()
            if done():
                return
            if self._over is not None:
                raise TunnelFailed(f"gRPC tunnel: {self._over}")
            try:
                size = self._sock.recv_into(self._buffer.get())
            except OSError as error:
                raise TunnelFailed(f"gRPC tunnel: {error}") from error
            if not size:
                raise TunnelFailed("gRPC tunnel: the server closed the connection")
            self._connection.receive(self._buffer.filled(size), time.monotonic())

    def _flush(self) -> None:
        connection = self._connection
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
