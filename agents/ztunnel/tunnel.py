"""Copies bytes between an application's socket and an HTTP/2 stream. The hot path.

What the application sends leaves as DATA frames as large as what was read; what the peer sends is
written to the application straight from the decrypted buffer. Back-pressure is real on both
sides: the application is read only when the peer's window and the transport take it, and the peer
gets its window back only for what the application has taken.

The end of one direction is passed on once everything before it is; the other direction goes on. A
reset of the application's socket becomes RST_STREAM and the other way round, where ztunnel makes
an orderly end of both (ztunnel: src/copy.rs).
"""

from __future__ import annotations

import errno
import os
import select
import socket
from _socket import socket as RawSocket
from typing import Final, Protocol

from nodenet.agents.ztunnel.poller import Poller
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.agents.ztunnel.transport import (
    CHUNK_BYTES,
    FRAME_HEADER_BYTES,
    ROUNDS,
    Transport,
    Wires,
)
from nodenet.errors import NodenetError
from nodenet.hbone.connection import Connection
from nodenet.hbone.errors import ErrorCode, code_name
from nodenet.hbone.stream import Stream

_READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_ENDING: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLPRI


class TunnelError(NodenetError):
    """A tunnel ended before both directions had; the message is what the access log says."""


class TunnelOwner(Protocol):
    """Whose tunnel it is."""

    def tunnel_ended(self, error: NodenetError | None) -> None:
        """Socket and stream are given up; ``error`` is None when both directions ended well."""


class Tunnel:
    """One tunnelled connection. The socket belongs to it; the stream is open at both ends.

    It is the target of its socket's events and the receiver of its stream's.
    """

    __slots__ = (
        "_app_ended",
        "_core",
        "_fd",
        "_owner",
        "_peer_ended",
        "_pending",
        "_poller",
        "_queued",
        "_shut",
        "_sock",
        "_stream",
        "_transport",
        "_unwanted",
        "_waiting",
        "_wires",
        "over",
        "received",
        "sent",
    )

    def __init__(
        self,
        wires: Wires,
        transport: Transport,
        stream: Stream,
        sock: RawSocket,
        owner: TunnelOwner,
    ) -> None:
        core = transport.core
        assert core is not None
        self._wires = wires
        self._poller: Poller = wires.poller
        self._transport = transport
        self._core: Connection = core
        self._stream = stream
        self._sock = sock
        self._fd = sock.fileno()
        self._owner = owner
        self._pending: bytearray | None = None
        """What the application has not taken yet: at most the stream's window."""
        self._app_ended = False
        """The application sends no more, and END_STREAM is sent."""
        self._peer_ended = False
        """The peer sends no more."""
        self._shut = False
        """The application was told so, after everything before it."""
        self._queued = False
        """Its share of a turn was used up; it goes on in the next."""
        self._waiting = False
        """In the transport's queue of those that have payload."""
        self._unwanted = False
        """The peer has said all it had, and wants nothing more: what the application sends from
        now on is thrown away."""
        self.over = False
        self.sent = 0
        """Payload bytes the application has sent into the tunnel."""
        self.received = 0
        """Payload bytes that came out of the tunnel for the application."""
        stream.receiver = self

    def first(self) -> None:
        """Passes on what the application has sent already; its socket may be watched or not."""
        if not self.over:
            self._pump(True)

    # -- poller.Target: the application's socket ------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        if self.over:
            return
        if self._unwanted and self._shut and mask & _READABLE:
            self._discard()
            return
        if mask & select.EPOLLERR and (self._app_ended or self._waiting or self._stalled()):
            # nobody reads it now, so nobody would see the error
            self._app_broke(self._socket_error())
            return
        if mask & select.EPOLLOUT and self._pending is not None:
            self._write_pending()
        if mask & _READABLE and not (self._app_ended or self._queued or self._waiting or self.over):
            self._pump(bool(mask & _ENDING))

    def resume(self) -> None:
        """See `poller.Target` and `transport.Waiter`."""
        self._queued = self._waiting = False
        if self.over:
            return
        if not self._app_ended:
            self._pump(True)
        elif self._unwanted and self._shut:
            self._discard()

    def broken(self) -> None:
        """See `poller.Target`."""
        self.cut(TunnelError("io error: internal error"))

    # -- hbone.Receiver: the stream --------------------------------------------------------------

    def data(self, payload: memoryview) -> None:
        """See `hbone.connection.Receiver`."""
        size = len(payload)
        self.received += size
        pending = self._pending
        if pending is not None:
            pending += payload
            return
        try:
            sent = self._sock.send(payload, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._app_broke(error)
            return
        if sent:
            self._core.consumed(self._stream, sent)
        if sent < size:
            self._pending = bytearray(payload[sent:])

    def ended(self) -> None:
        """See `hbone.connection.Receiver`."""
        self._peer_ended = True
        if self._pending is None:
            self._shut_app()

    def reset(self, code: int) -> None:
        """See `hbone.connection.Receiver`."""
        if self.over:
            return
        if code == ErrorCode.NO_ERROR and self._peer_ended:
            # the peer has everything it wants and gave all it had (RFC 9113 section 8.1)
            self._app_ended = self._unwanted = True
            if self._shut:
                self._leave_to_app()
            return
        self._give_pending()
        reset_on_close(self._sock)
        lost = self._transport.failure
        self._finish(lost or TunnelError(f"h2 failed: stream reset by the peer: {code_name(code)}"))

    def writable(self) -> None:
        """See `hbone.connection.Receiver`."""
        if not (self._app_ended or self._queued or self._waiting or self.over):
            self._pump(True)

    # -- the owner's -----------------------------------------------------------------------------

    def cut(self, error: NodenetError, code: int = ErrorCode.CANCEL) -> None:
        """Resets both sides."""
        if self.over:
            return
        if not self._transport.over:
            self._core.reset(self._stream, code)
            self._transport.flush_soon()
        reset_on_close(self._sock)
        self._finish(error)

    # -- application to peer ---------------------------------------------------------------------

    def _pump(self, to_the_end: bool) -> None:
        """Passes on what there is, at most `ROUNDS` reads of it.

        ``to_the_end``: a read that does not fill its room is not the last one.
        """
        transport, core, stream, frame = (
            self._transport,
            self._core,
            self._stream,
            self._wires.frame,
        )
        receive = self._sock.recv_into
        for _ in range(ROUNDS):
            if transport.congested:
                self._waiting = True
                transport.wait(self)
                return
            room = core.sendable(stream)
            if room > CHUNK_BYTES:
                room = CHUNK_BYTES
            elif room <= 0:
                if stream.send_window > 0:  # it is the connection's window that is used up
                    self._waiting = True
                    transport.wait(self)
                return  # else `writable` is called when there is some
            try:
                count = receive(
                    frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + room], 0, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            except OSError as error:
                self._app_broke(error)
                return
            if not count:
                self._app_ended = True
                core.end(stream)
                transport.flush_soon()
                self._end_if_both()
                return
            self.sent += count
            core.write_data_header_into(frame, 0, stream, count)
            transport.send(frame[: FRAME_HEADER_BYTES + count])
            if self.over:
                return  # the send found the connection broken
            if count < room and not to_the_end:
                return
        self._queued = True
        self._poller.again(self)

    def _stalled(self) -> bool:
        return self._core.sendable(self._stream) <= 0

    # -- peer to application ---------------------------------------------------------------------

    def _write_pending(self) -> None:
        pending = self._pending
        assert pending is not None
        core = self._core
        while pending:
            try:
                # the view must be gone before the bytearray can shrink
                sent = self._sock.send(memoryview(pending)[:CHUNK_BYTES], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                self._app_broke(error)
                return
            del pending[:sent]
            core.consumed(self._stream, sent)
            if core.outbox:
                self._transport.flush_soon()
        self._pending = None
        if self._peer_ended:
            self._shut_app()

    def _give_pending(self) -> None:
        """What had come before a reset is the application's, as far as its socket takes it."""
        pending, self._pending = self._pending, None
        if pending:
            try:
                self._sock.send(pending, socket.MSG_DONTWAIT)
            except OSError:
                return  # it is reset either way

    def _shut_app(self) -> None:
        if self._app_ended and not self._unwanted:
            self._shut = True
            self._end_if_both()  # close() sends the FIN
            return
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:  # ENOTCONN: reset meanwhile
            self._app_broke(error)
            return
        self._shut = True
        if self._unwanted:
            self._leave_to_app()

    def _leave_to_app(self) -> None:
        """The application has been given everything. Its socket stays for a while: closed with
        something unread in it, the kernel would drop what the application has not received.
        """
        self._wires.drains.add(self)
        self._discard()

    def _discard(self) -> None:
        """Throws away what the application sends, at most `ROUNDS` reads of it."""
        for _ in range(ROUNDS):
            try:
                count = self._sock.recv_into(self._wires.frame, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # it does not want the rest, or has it
                count = 0
            if not count:
                self._finish(None)
                return
        if not self._queued:
            self._queued = True
            self._poller.again(self)

    def expire(self) -> None:
        """See `transport.Draining`: the application goes on sending to nobody."""
        if not self.over:
            self._finish(None)

    # -- the end ---------------------------------------------------------------------------------

    def _end_if_both(self) -> None:
        if self._app_ended and self._shut:
            self._finish(None)

    def _app_broke(self, error: OSError) -> None:
        text = error.strerror or os.strerror(error.errno or errno.EIO)
        self.cut(TunnelError(f"io error: {text}"))

    def _finish(self, error: NodenetError | None) -> None:
        self.over = True
        self._pending = None
        if self._unwanted:
            self._wires.drains.discard(self)
        fd, self._fd = self._fd, -1
        self._stream.receiver = CLOSED
        if self._waiting:
            self._transport.forget(self)
        self._poller.retire(fd, self._sock)
        self._owner.tunnel_ended(error)

    def _socket_error(self) -> OSError:
        number = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.ECONNRESET
        return OSError(number, os.strerror(number))


class _Closed:
    """Receives for a stream whose tunnel is over; late data is consumed by the core itself."""

    def data(self, payload: memoryview) -> None: ...

    def ended(self) -> None: ...

    def reset(self, code: int) -> None: ...

    def writable(self) -> None: ...


CLOSED: Final = _Closed()
