"""A `Connection` on an asyncio transport: the only module of the package that knows asyncio.

Everything is a callback: no task, no future and no queue per message. What a turn of the loop made
is written at its end, or sooner when it is much.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Final, cast

from nodenet.rpc import read_buffer
from nodenet.rpc.call import Buffer
from nodenet.rpc.connection import Accept, Connection, Role
from nodenet.rpc.limits import Limits

#: Bytes the transport holds before the connection counts as congested: less leaves the socket
#: idle, more is latency for whoever comes behind.
WRITE_HIGH_BYTES: Final = 512 << 10
WRITE_LOW_BYTES: Final = 128 << 10
#: A peer that makes us answer and never reads is cut at this.
WRITE_LIMIT_BYTES: Final = 8 << 20
#: For a peer to take what was written before its connection was closed.
CLOSE_SECONDS: Final = 5.0


#: Pieces below it are copied together: each one more is an entry of writev(2), or a TLS record.
_SMALL_BYTES: Final = 16 << 10


def _gathered(pieces: list[Buffer]) -> list[Buffer]:
    """The same bytes, small pieces as one, large ones as they are."""
    if sum(map(len, pieces)) < _SMALL_BYTES:
        return [b"".join(pieces)]
    out: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < _SMALL_BYTES:
            small.append(piece)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(piece)
    if small:
        out.append(b"".join(small))
    return out


class RpcProtocol(asyncio.BufferedProtocol):
    """One connection; `connection` is there from `connection_made` on.

    ``on_made`` is told the new connection, ``on_lost`` that it is over (once).
    """

    def __init__(
        self,
        role: Role,
        *,
        limits: Limits | None = None,
        accept: Accept | None = None,
        authority: str = "localhost",
        secure: bool = False,
        on_made: Callable[[RpcProtocol], None] | None = None,
        on_lost: Callable[[RpcProtocol], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = read_buffer.shared()
        self._role = role
        self._limits = limits
        self._accept = accept
        self._authority = authority
        self._secure = secure
        self._on_made = on_made
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_queued = False
        self._closing = False
        self._flushing = False
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """The core."""
        assert self._connection is not None, "not connected yet"
        return self._connection

    @property
    def transport(self) -> asyncio.Transport:
        """What it runs on. ConnectionResetError before there is one and when it is over."""
        if self._transport is None:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return self._transport

    @property
    def unsent(self) -> int:
        """Bytes of frames that the transport has and the kernel has not."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Ends all calls, says so to the peer, and closes; cut after `CLOSE_SECONDS`."""
        if self._connection is not None and self._connection.over is None:
            self._connection.close()

    def abort(self, text: str = "aborted") -> None:
        """Ends it now."""
        if self._connection is not None:
            self._connection.lost(text)
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        # uvloop's transports are asyncio's by their methods only
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self._connection = Connection(
            self._role,
            now=self._loop.time(),
            limits=self._limits,
            accept=self._accept,
            authority=self._authority,
            secure=self._secure,
            wake=self._wake,
            hurry=self._hurry,
        )
        self._wake()
        self._arm()
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._buffer.get()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self.data_received(self._buffer.filled(nbytes))

    def data_received(self, data: Buffer) -> None:
        """Bytes from the peer, which may be kept."""
        assert self._connection is not None
        self._connection.receive(data, self._loop.time())

    def eof_received(self) -> bool:
        """See asyncio.Protocol: HTTP/2 has no half-closed connections."""
        return False

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        assert self._connection is not None
        self._connection.congested = True

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        assert self._connection is not None
        self._connection.congested = False
        if self._connection.pending:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connection is not None:
            reason = f"connection lost: {exc}" if exc else "connection closed by the peer"
            self._connection.lost(reason)
            self._connection.release()
        # a TLS transport keeps this protocol's methods, and half a megabyte of buffers with them:
        # without this only the garbage collector ends the two
        self._transport = None
        self._accept = None
        if self._on_lost is not None:
            told, self._on_lost = self._on_lost, None
            told(self)

    # -- writing --------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._flush_queued and self._transport is not None:
            self._flush_queued = True
            self._loop.call_soon(self._flush)

    def _hurry(self) -> None:
        if not self._flushing:  # a handler that is asked for its messages may hurry again
            self._flush()

    def _flush(self) -> None:
        self._flushing = True
        try:
            self._write()
        finally:
            self._flushing = False

    def _write(self) -> None:
        self._flush_queued = False
        connection, transport = self._connection, self._transport
        assert connection is not None
        if transport is None or self._closing or transport.is_closing():
            connection.flush()
            return
        out = connection.flush()
        if out:
            pieces = _gathered(out)
            if len(pieces) == 1:
                transport.write(pieces[0])
            else:
                transport.writelines(pieces)
        if connection.over is not None:
            self._end()
        elif connection.congested:
            if transport.get_write_buffer_size() > WRITE_LIMIT_BYTES:
                text = "the peer does not read our answers"
                connection.lost(text)
                transport.abort()
        elif connection.pending:
            self._wake()

    def _end(self) -> None:
        """The core is over: what it wrote goes out, then the transport."""
        self._closing = True
        transport = self._transport
        assert transport is not None
        transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(CLOSE_SECONDS, transport.abort)

    # -- the clock ------------------------------------------------------------------------------

    def _arm(self) -> None:
        connection = self._connection
        assert connection is not None
        due = connection.next_timer()
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        connection = self._connection
        assert connection is not None
        connection.handle_timer(self._loop.time())
        if connection.over is None:
            self._arm()
