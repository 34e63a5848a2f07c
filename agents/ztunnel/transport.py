"""TLS over a raw socket, HTTP/2 over TLS: the wire of HBONE. The hot path.

Ciphertext goes through memory BIOs, so that a socket is read and written in large pieces with
record-sized work only inside OpenSSL. Everything read in one go is decrypted into one reused
buffer and given to the HTTP/2 core as a single view; payload is never assembled or copied here.

Small frames collect in the core's outbox and leave as one record at the end of the poller's turn;
large ones are encrypted at once. While the socket does not take what was encrypted, the transport
is `congested`: whoever has payload waits (`wait`) and is resumed in order, so that memory stays
bounded by one write and slow receivers are felt by the senders.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import select
import socket
import ssl
import struct
import termios
from _socket import socket as RawSocket
from typing import ClassVar, Final, Protocol, cast

from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.flow_facts import ResponseFlag
from nodenet.agents.ztunnel.poller import Poller
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.errors import NodenetError
from nodenet.hbone.connection import Connection
from nodenet.hbone.errors import H2Error
from nodenet.identity.errors import HandshakeFailed, TlsError
from nodenet.identity.peer import tls_error

#: Bytes read from a socket at a time, and of payload read from an application at a time.
CHUNK_BYTES: Final = 256 * 1024
#: Plaintext decrypted before the core sees it; one record more than what is read at a time.
PLAIN_BYTES: Final = CHUNK_BYTES + 16 * 1024
#: The most one TLS record holds.
_RECORD_BYTES: Final = 16 * 1024
#: Frames up to this size are put together into one record; above it the copy costs more.
SMALL_BYTES: Final = 4 * 1024
#: Reads of one transport before the other sockets get their turn.
ROUNDS: Final = 4
#: Answers and other control frames that may wait while the peer takes nothing. A peer that is slow
#: has 200 streams at most and so some 100 KiB of them; only one that never reads has more.
MAX_UNREAD_BYTES: Final = 1024 * 1024
#: Length of a frame's header, RFC 9113 section 4.1.
FRAME_HEADER_BYTES: Final = 9
#: Seconds of silence before a peer is asked for a sign of life, and for its answer
#: (ztunnel: src/proxy/h2.rs, PING).
PING_SECONDS: Final = 10.0
PONG_SECONDS: Final = 20.0
#: Seconds a TLS handshake may take, from the first byte to the last.
HANDSHAKE_SECONDS: Final = 10.0
#: Seconds a connection that ends gets to send what it still has, and how often it gets them again
#: if some of it has gone meanwhile.
LINGER_SECONDS: Final = 5.0
LINGER_AGAIN: Final = 11

_COUNT: Final = struct.Struct("=i")
_PING_OPAQUE: Final = b"nodenet\0"
_READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_ENDING: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

logger = logging.getLogger(__name__)


class TransportLost(NodenetError):
    """The connection to the peer is gone; the message is what the access log says."""


class H2Failed(TransportLost):
    """The peer broke HTTP/2."""

    response_flag: ClassVar = ResponseFlag.H2_HANDSHAKE_FAILURE


class Owner(Protocol):
    """Whose transport it is."""

    def secured(self, transport: Transport) -> Connection:
        """The handshake is done: checks the peer and gives the core. TlsError refuses it."""

    def ready(self, transport: Transport) -> None:
        """Streams can be opened and are accepted from now on."""

    def lost(self, transport: Transport, error: NodenetError) -> None:
        """It is over; told once, whether it ever was secured or not."""


class Waiter(Protocol):
    """Has payload for a transport that is congested."""

    def resume(self) -> None:
        """It is not any more."""


class Draining(Protocol):
    """Waits for the end of something for a while."""

    def expire(self) -> None:
        """It has not come in time."""


class Wires:
    """What all transports of one poller share. Belongs to the worker's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, poller: Poller) -> None:
        self.loop = loop
        self.poller = poller
        self.cipher = memoryview(bytearray(CHUNK_BYTES))
        """What was just read from a socket."""
        self.plain = memoryview(bytearray(PLAIN_BYTES))
        """What was just decrypted; a view of it is valid until the next read."""
        self.inner_plain = memoryview(bytearray(PLAIN_BYTES))
        """The same for connections within connections: both are in use at the same time."""
        self.frame = memoryview(bytearray(FRAME_HEADER_BYTES + CHUNK_BYTES))
        """A DATA frame being made: the payload is read straight behind the header's place."""
        self.handshakes = Deadlines[Transport](loop, HANDSHAKE_SECONDS, _handshake_expired)
        self.pings = Deadlines[Transport](loop, PING_SECONDS, _ping)
        self.pongs = Deadlines[Transport](loop, PONG_SECONDS, _pong_expired)
        self.lingers = Deadlines[Transport](loop, LINGER_SECONDS, _linger_expired)
        self.drains = Deadlines[Draining](loop, LINGER_SECONDS, _drain_expired)
        self._dirty: list[Transport] = []

    def close(self) -> None:
        """Forgets all timers. No transport may be left."""
        for deadlines in (
            self.handshakes,
            self.pings,
            self.pongs,
            self.lingers,
            self.drains,
        ):
            deadlines.close()

    def flush_later(self, transport: Transport) -> None:
        """Has what a transport collected written at the end of this turn."""
        if not self._dirty:
            if self.poller.delivering:
                self.poller.at_end(self._flush)
            else:
                self.loop.call_soon(self._flush)
        self._dirty.append(transport)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for transport in dirty:
            transport.flush_queued = False
            try:
                transport.flush()
            except Exception:
                logger.exception("bug: a transport cannot be flushed; it is cut")
                transport.broken()


class Transport:
    """One TLS connection with one HTTP/2 connection in it.

    Made for a connected socket; the handshake begins with `start`. The socket belongs to it.
    """

    __slots__ = (
        "_incoming",
        "_lingered",
        "_notified",
        "_outgoing",
        "_plain",
        "_read",
        "_unsent",
        "_waiting",
        "_wires",
        "_write",
        "alive",
        "closing",
        "congested",
        "core",
        "error",
        "fd",
        "flush_queued",
        "in_order",
        "over",
        "owner",
        "pending",
        "queued",
        "sock",
        "tls",
    )

    def __init__(
        self, wires: Wires, sock: RawSocket, context: ssl.SSLContext, owner: Owner, *, server: bool
    ) -> None:
        self._wires = wires
        self.sock = sock
        self.fd = sock.fileno()
        self.owner = owner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._read, self._write = self.tls.read, self.tls.write
        self._plain = wires.plain
        self.core: Connection | None = None
        """None until the handshake is done."""
        self.congested = False
        """Ciphertext waits for the socket: nobody may add payload."""
        self.pending: memoryview | None = None
        self.queued = False
        self.flush_queued = False
        self.closing = False
        """It ends in order: what is queued is written, what comes is not of interest any more."""
        self._notified = False
        """The peer is told, by close_notify: nothing can be encrypted any more."""
        self._lingered = 0
        self._unsent = 0
        self.in_order = False
        """It ends because both sides have said all they had."""
        self.over = False
        self.error: NodenetError | None = None
        """Why it is over."""
        self.alive = False
        """Something was read since the last PING."""
        # in order; those that end meanwhile take themselves out
        self._waiting: dict[Waiter, None] = {}

    @property
    def failure(self) -> NodenetError | None:
        """Why its streams are lost; None while they are not."""
        core = self.core
        if self.error is None and core is not None and core.fault is not None:
            return H2Failed(f"h2 failed: {core.fault.text}")  # about to be over
        return self.error

    def start(self) -> None:
        """Begins the handshake. The poller tells this object about the socket already."""
        self._wires.handshakes.add(self)
        self._shake()

    # -- poller.Target --------------------------------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        if mask & select.EPOLLOUT and self.pending is not None:
            self._write_pending()
        if mask & _READABLE and not (self.over or self.queued):
            self._receive(bool(mask & _ENDING))

    def resume(self) -> None:
        """See `poller.Target`: reads on where the last turn's share was used up."""
        self.queued = False
        if not self.over:
            self._receive(True)

    def broken(self) -> None:
        """See `poller.Target`."""
        self.abort(TransportLost("io error: internal error"))

    # -- writing ---------------------------------------------------------------------------------

    def send(self, frame: memoryview) -> None:
        """Sends a whole DATA frame, after everything the core has queued.

        Not while `congested`. ``frame`` may be reused when this returns.
        """
        core = self.core
        assert core is not None
        outbox = core.outbox
        if len(frame) <= SMALL_BYTES:
            outbox += frame
            self.flush_soon()
            return
        if outbox:
            self._encrypt_outbox(core)
        self._encrypt(frame)
        self._send_encrypted()

    def flush_soon(self) -> None:
        """Has the core's outbox written at the end of the turn."""
        if not self.flush_queued:
            self.flush_queued = True
            self._wires.flush_later(self)

    def flush(self) -> None:
        """Writes what the core has queued, unless the socket takes nothing now."""
        core = self.core
        if self.over or self.pending is not None or core is None or self._notified:
            return
        if core.outbox:
            self._encrypt_outbox(core)
        self._send_encrypted()

    def wait(self, waiter: Waiter) -> None:
        """Has ``waiter`` resumed when the transport is not congested any more, in order."""
        self._waiting[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        """It is over and waits no more: a window may stay shut for as long as the peer likes."""
        self._waiting.pop(waiter, None)

    def resume_waiting(self) -> None:
        """Resumes those that wait, in order, as far as the socket and the windows let them."""
        waiting = self._waiting
        for _ in range(len(waiting)):  # those that have to wait again are at the end
            if self.congested or self.over or not waiting:
                return
            waiter = next(iter(waiting))
            del waiting[waiter]
            waiter.resume()

    def _encrypt_outbox(self, core: Connection) -> None:
        self._encrypt(memoryview(bytes(core.outbox)))
        core.outbox.clear()

    def _encrypt(self, view: memoryview) -> None:
        write, size = self._write, len(view)
        # one record at a time is all that OpenSSL does in partial-write mode
        done = write(view)
        while done < size:
            done += write(view[done:])

    def _send_encrypted(self) -> None:
        data = self._outgoing.read()
        if not data:
            return
        try:
            sent = self._send_raw(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._socket_failed(error)
            return
        if sent < len(data):
            self.pending = memoryview(data)[sent:]
            self.congested = True

    def _write_pending(self) -> None:
        pending = self.pending
        assert pending is not None
        try:
            sent = self._send_raw(pending)
        except BlockingIOError:
            return
        except OSError as error:
            self._socket_failed(error)
            return
        if sent < len(pending):
            self.pending = pending[sent:]
            return
        self.pending = None
        self.congested = False
        self.flush()
        self.resume_waiting()
        if self.closing:
            self._notify()

    def _send_raw(self, data: bytes | memoryview) -> int:
        return self.sock.send(data, socket.MSG_DONTWAIT)

    # -- reading ---------------------------------------------------------------------------------

    def _receive(self, to_the_end: bool) -> None:
        wires = self._wires
        cipher, receive, feed = wires.cipher, self.sock.recv_into, self._incoming.write
        for _ in range(ROUNDS):
            try:
                count = receive(cipher, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                self._socket_failed(error)
                return
            if not count:
                self._ended()
                return
            if not self.closing:
                feed(cipher[:count])
                self.alive = True
                self.deliver()
                if self.over or not self.heard():
                    return
            if count < CHUNK_BYTES and not to_the_end:
                # empty: on a stream a read is short for no other reason
                return
        self.queued = True
        wires.poller.again(self)

    def deliver(self) -> bool:
        """Decrypts what has arrived and gives it to the core; False when that was the end."""
        core = self.core
        if core is None:
            if not self._shake():
                return not self.over
            core = self.core
            assert core is not None
        incoming, read, plain = self._incoming, self._read, self._plain
        size = 0
        try:
            while incoming.pending:
                # with a buffer it returns a count, which the stubs do not know
                count = cast(int, read(_RECORD_BYTES, plain[size:]))
                if not count:
                    self._give(core, plain[:size])
                    self._ended()
                    return False
                size += count
                if size > PLAIN_BYTES - _RECORD_BYTES:
                    if not self._give(core, plain[:size]):
                        return False
                    size = 0
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still on its way
        except ssl.SSLZeroReturnError:
            self._give(core, plain[:size])
            self._ended()
            return False
        except ssl.SSLError as error:
            self.abort(tls_error(error))
            return False
        return self._give(core, plain[:size]) if size else True

    def heard(self) -> bool:
        """Looks after what was read; False when the peer asks and asks and reads no answer."""
        outgoing = self._outgoing.pending  # OpenSSL's own answers: new keys
        if not self.congested:
            if outgoing:
                self.flush_soon()
            return True
        core = self.core
        if outgoing + (0 if core is None else len(core.outbox)) <= MAX_UNREAD_BYTES:
            return True
        self.abort(TransportLost("io error: the peer does not read"))
        return False

    def _give(self, core: Connection, view: memoryview) -> bool:
        try:
            core.receive(view)
        except H2Error as error:
            self.flush()  # its GOAWAY
            self.abort(H2Failed(f"h2 failed: {error.text}"))
            return False
        if core.outbox:
            self.flush_soon()
        return not (self.over or self.closing)

    # -- handshake -------------------------------------------------------------------------------

    def _shake(self) -> bool:
        """Goes on with the handshake; whether it is done now."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_encrypted()
            return False
        except (ssl.SSLError, OSError) as error:
            self._send_encrypted()  # the alert
            self.abort(tls_error(error))
            return False
        try:
            core = self.owner.secured(self)
        except TlsError as error:
            self._send_encrypted()
            self.abort(error)
            return False
        self._wires.handshakes.discard(self)
        self._wires.pings.add(self)
        self.core = core
        self.owner.ready(self)
        self.flush()
        return not self.over

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends it in order: what the core has queued is written, then close_notify, then FIN.

        The socket is closed when the peer has closed its own, since the kernel drops what is
        unsent of a closed socket when the peer says anything, and it does: window updates for what
        it has just received. No stream is left.
        """
        if self.over or self.closing:
            return
        self.flush()
        if self.over:
            return
        self.closing = True
        wires, core = self._wires, self.core
        for deadlines in (wires.pings, wires.pongs):
            deadlines.discard(self)
        wires.lingers.add(self)
        if core is not None:
            core.lost()
        self._notify()

    def _notify(self) -> None:
        """Tells the peer that nothing more comes, once everything else is written."""
        if self.over or self.congested:
            return
        if not self._notified:
            self._notified = True
            with contextlib.suppress(ssl.SSLError):  # the peer's own close_notify is not awaited
                self.tls.unwrap()
            self._send_encrypted()
            if self.over or self.congested:
                return
        self.in_order = True
        self._shut()

    def _shut(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._socket_failed(error)

    def linger(self) -> bool:
        """Whether to wait on for the peer to take what was sent."""
        unsent = self._left()
        goes_on = not self._lingered or unsent < self._unsent
        self._lingered += 1
        self._unsent = unsent
        return bool(unsent) and goes_on and self._lingered <= LINGER_AGAIN

    def _left(self) -> int:
        """Bytes that the peer has not acknowledged."""
        waiting = 0 if self.pending is None else len(self.pending)
        unacknowledged: int
        (unacknowledged,) = _COUNT.unpack(fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4)))
        return waiting + unacknowledged

    def abort(self, error: NodenetError) -> None:
        """Ends it now; what is not sent is lost."""
        if not self.over:
            if self.pending is not None:
                self._reset_on_release()
            self._finish(error)

    def _ended(self) -> None:
        if self.closing:
            self._finish(TransportLost("io error: closed"))
        elif self.core is None:
            self.abort(HandshakeFailed("the peer closed the connection during the handshake"))
        else:
            self.abort(TransportLost("io error: connection closed by the peer"))

    def _socket_failed(self, error: OSError) -> None:
        reason = os.strerror(error.errno or errno.EIO)
        if self.core is None:
            self.abort(HandshakeFailed(f"{reason} during the handshake"))
        else:
            self.abort(TransportLost(f"io error: {reason}"))

    def _finish(self, error: NodenetError) -> None:
        self.over = True
        self.error = error
        wires = self._wires
        for deadlines in (wires.handshakes, wires.pings, wires.pongs, wires.lingers):
            deadlines.discard(self)
        self._waiting.clear()
        self.pending = None
        self._release()
        self.owner.lost(self, error)

    def _reset_on_release(self) -> None:
        reset_on_close(self.sock)

    def _release(self) -> None:
        """Gives the socket up."""
        fd, self.fd = self.fd, -1
        self._wires.poller.retire(fd, self.sock)


def _handshake_expired(transport: Transport) -> None:
    transport.abort(HandshakeFailed(f"no end of the handshake within {HANDSHAKE_SECONDS:g} s"))


def _ping(transport: Transport) -> None:
    wires = transport._wires
    if transport.alive:
        # data is a sign of life as good as an answer
        transport.alive = False
        wires.pings.add(transport)
        return
    assert transport.core is not None
    transport.core.ping(_PING_OPAQUE)
    transport.flush_soon()
    wires.pongs.add(transport)


def _pong_expired(transport: Transport) -> None:
    wires = transport._wires
    if transport.alive:
        transport.alive = False
        wires.pings.add(transport)
        return
    transport.abort(
        TransportLost(f"io error: no sign of life for {PING_SECONDS + PONG_SECONDS:g} s")
    )


def _linger_expired(transport: Transport) -> None:
    if transport.linger():
        transport._wires.lingers.add(transport)
    else:
        transport.abort(TransportLost("io error: closed"))


def _drain_expired(drain: Draining) -> None:
    drain.expire()
