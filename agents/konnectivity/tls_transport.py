"""TLS over TCP as asyncio transports, on the epoll of the Unix sockets and of the agent's remotes.

Ciphertext is read and sent in large pieces, and OpenSSL works on records between them. What the
socket does not take stays here, encrypted as far as it was begun, and the protocol is told to wait.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import sys
import threading
from _socket import socket as RawSocket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from nodenet.agents.konnectivity.poller_transport import PollerTransport
from nodenet.agents.ztunnel.poller import Poller
from nodenet.endpoint import format_host_port
from nodenet.rpc.call import Buffer
from nodenet.tls.engine import TAKE_BYTES, WRITE_BYTES, Engine
from nodenet.tls.errors import HandshakeFailed, PeerLeft, TlsError

#: Seconds a handshake may take, from the first byte to the last.
HANDSHAKE_SECONDS: Final = 10.0
#: For a peer that takes nothing of what was written before the end, the kernel's part included.
FLUSH_SECONDS: Final = 30.0
#: For the end of a peer that has taken everything; who was refused has no more in any case.
SHUTDOWN_SECONDS: Final = 5.0
#: Ciphertext of one read(2).
READ_BYTES: Final = 256 << 10
#: Reads of one connection before the others have their turn.
ROUNDS: Final = 4
#: Plaintext that is encrypted before it is sent: four of them fit into a second-level cache.
CHUNK_BYTES: Final = 128 << 10
#: A chunk may be so much longer, so that none is so short.
_SPARE_BYTES: Final = 4 << 10
#: Reads of payload after which it is looked whether OpenSSL has an answer of its own (new keys).
READS_UNANSWERED: Final = 64
#: OpenSSL's own answers that wait for a peer which asks for new keys and does not read.
MAX_UNREAD_BYTES: Final = 1 << 20
_BROKEN: Final = select.EPOLLHUP | select.EPOLLERR

logger = logging.getLogger(__name__)

assert CHUNK_BYTES + _SPARE_BYTES <= WRITE_BYTES


class _Cipher(threading.local):
    """What was just read from a socket, of all connections of a thread."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ_BYTES))


_CIPHER: Final = _Cipher()


def _nobody(_error: Exception) -> None:
    return None


def peer_name(ask: Callable[[], tuple[Any, ...]]) -> str:
    """Who is at the other end, for people; ``ask`` is a socket's `getpeername`."""
    try:
        return format_host_port(*ask()[:2])
    except OSError:
        return "somebody who has gone"


class TlsTransport(PollerTransport):
    """One connection; see `PollerTransport`. Its protocol is made when the handshake is done.

    A close in either direction is one of both: what is written goes out, then close_notify and FIN,
    and the socket stays until the peer has ended too, because the kernel would drop what is on the
    way when it says anything. A peer that is gone altogether is read to the end all the same, also
    while reading is paused: what it said before it went is not lost.
    """

    __slots__ = (
        "_cipher",
        "_cipher_bytes",
        "_deaf",
        "_engine",
        "_factory",
        "_failed",
        "_hung_up",
        "_reading_on",
        "_reads",
        "_shut",
        "_timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: RawSocket,
        engine: Engine,
        factory: Callable[[], asyncio.BaseProtocol],
        failed: Callable[[Exception], None],
        *,
        direct: bool = False,
    ) -> None:
        super().__init__(loop, poller, sock, direct=direct)
        self._engine = engine
        self._factory: Callable[[], asyncio.BaseProtocol] | None = factory
        """None when the handshake is done, or has failed."""
        self._failed = failed
        """Told when there will be no protocol."""
        self._cipher: deque[memoryview] = deque()
        """What was encrypted and the kernel has not taken."""
        self._cipher_bytes = 0
        self._deaf: OSError | None = None
        """Why the peer takes nothing any more; what is for it is dropped, what it said is read."""
        self._hung_up = False
        """The peer is gone, and what it has said is all there will be."""
        self._reading_on = False
        """The poller was asked to come back for what is read already."""
        self._reads = 0
        self._shut = False
        """FIN was sent, behind everything else."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins the handshake."""
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, self._too_late)
        self._watch()
        self._shake()

    # -- poller.Target ----------------------------------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        if mask & select.EPOLLOUT and not self._over:
            self._flush()
        if mask & ~select.EPOLLOUT and not self._over:
            if mask & _BROKEN and not (self._reading or self._closing):
                # told however often it is not asked for
                self._hung_up = True
                self._watch()
            if self._mask & select.EPOLLIN:
                self._read()
            elif mask & _BROKEN:
                self._end(self._deaf or self._socket_error())

    def resume(self) -> None:
        """See `poller.Target`: of reading that was paused in the middle of what had come."""
        self._reading_on = False
        if self._wanted() and not self._over:
            self._deliver()

    def broken(self) -> None:
        """See `poller.Target`: it is cut, and who waits for its handshake hears why."""
        failed, self._failed = self._failed, _nobody
        self.abort()
        found = sys.exception()
        failed(found if isinstance(found, Exception) else ConnectionAbortedError("internal error"))

    def _watch(self) -> None:
        wanted = select.EPOLLOUT if self._cipher else 0
        if self._shut or (self._wanted() and not self._peer_ended):
            wanted |= select.EPOLLIN
        self._tell(wanted)

    def _wanted(self) -> bool:
        """Whether the protocol is to get what the peer says."""
        return (self._reading or self._hung_up) and not self._closing

    # -- handshake --------------------------------------------------------------------------------

    def _shake(self) -> bool:
        """Goes on with the handshake; whether it is done now."""
        factory = self._factory
        assert factory is not None
        try:
            done = self._engine.shake()
        except HandshakeFailed as error:
            self._take()  # the alert
            self._fail(error)
            return False
        self._take()
        if not done or self._over or self._deaf is not None:
            return False
        self._protocol = factory()
        self._factory, self._failed = None, _nobody
        self._cancel_timer()
        self._protocol.connection_made(self)
        return not self._closing

    def _too_late(self) -> None:
        self._timer = None
        self._fail(PeerLeft(f"no end of the handshake within {HANDSHAKE_SECONDS:g} s"))

    def _fail(self, error: Exception) -> None:
        """The handshake came to nothing."""
        if self._factory is None or self._over:
            return
        failed, self._failed = self._failed, _nobody
        self._factory = None
        self._closing = True
        self._cancel_timer()
        failed(error)
        # an alert, which a reset would take from a peer that has said more than we wanted to hear
        if isinstance(error, HandshakeFailed) and not isinstance(error, PeerLeft):
            self._watch()  # there is no protocol for what it says while the alert waits
            self._bound()
            self._say_goodbye()
        else:
            self._end(None)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    # -- reading ----------------------------------------------------------------------------------

    def _read(self) -> None:
        if not (self._engine.drained or self._shut) and self._factory is None:
            # it was paused in the middle of a read
            self._deliver()
            if self._over or not self._mask & select.EPOLLIN:
                return
        view, receive = _CIPHER.view, self._sock.recv_into
        for _ in range(ROUNDS):
            try:
                size = receive(view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(error)
                return
            if not size:
                if self._deaf is None:
                    self._ended()
                else:
                    self._end(self._deaf)
                return
            if self._factory is not None:
                self._engine.feed(view[:size])
                if self._shake():
                    self._deliver()
            elif not self._shut:  # else nobody wants it
                self._deliver(view[:size])
            if size < READ_BYTES or self._over or not self._mask & select.EPOLLIN:
                return

    def _deliver(self, fed: memoryview | None = None) -> None:
        """Decrypts what has come for the protocol, until it wants no more."""
        engine = self._engine
        try:
            while True:
                protocol = self._protocol
                size = engine.read_into(protocol.get_buffer(-1), fed)
                fed = None
                if size:
                    protocol.buffer_updated(size)
                if engine.drained or engine.ended or not self._wanted():
                    break
        except TlsError as error:
            self._take()  # the alert
            self._end(error)
            return
        if self._over:
            return
        if self._out and not self._cipher:
            self._encrypt()  # it may have waited for the rest of a message
            self._relieve_if_low()
        elif size and engine.drained and not self._cipher:
            # OpenSSL's own words are rare, and go with ours
            self._reads += 1
            if self._reads % READS_UNANSWERED:
                return
        self._take()
        if engine.ended and not self._peer_ended:
            self._ended()

    def _ended(self) -> None:
        """The peer says no more."""
        if self._factory is not None:
            self._fail(PeerLeft("the peer closed the connection"))
        elif self._shut:
            self._end(None)
        elif not self._peer_ended:
            self._peer_ended = True
            self._watch()
            if not self._closing:
                self._protocol.eof_received()
                self.close()

    def _lost(self, error: OSError) -> None:
        if self._factory is not None:
            self._fail(error)
        else:
            self._end(None if self._shut else error)

    def _socket_error(self) -> OSError | None:
        number = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return OSError(number, os.strerror(number)) if number else None

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        if not self._reading:
            super().resume_reading()
            if not (self._engine.drained or self._reading_on or self._closing):
                self._reading_on = True
                self._poller.again(self)

    # -- writing ----------------------------------------------------------------------------------

    def write(self, data: Buffer | bytearray) -> None:
        """See asyncio.WriteTransport."""
        size = len(data)
        if self._out or self._cipher or not 0 < size <= CHUNK_BYTES:
            self.writelines((data,))
        elif not self._closing and self._deaf is None:
            try:
                written = self._engine.write(memoryview(data))
            except TlsError as error:
                self._broke(error)
                return
            if written:
                self._take()
            else:
                self._queue(memoryview(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """See asyncio.WriteTransport."""
        if self._closing or self._deaf is not None:
            return
        for data in list_of_data:
            if data:
                self._queue(memoryview(data))
        if not self._cipher:
            self._encrypt()
        if self._out_bytes > self._high and not (self._paused or self._over):
            self._paused = True
            self._protocol.pause_writing()

    def _encrypt(self) -> None:
        """Sends what is queued, as far as the socket takes it."""
        out, write = self._out, self._engine.write
        try:
            while out and not self._cipher:
                room = CHUNK_BYTES
                while out and room > 0:
                    piece = out[0]
                    size = len(piece)
                    divided = size > room + _SPARE_BYTES
                    if not write(piece[:room] if divided else piece):
                        self._take()
                        return
                    if divided:
                        out[0] = piece[room:]
                        size = room
                    else:
                        out.popleft()
                    room -= size
                    self._out_bytes -= size
                self._take()
        except TlsError as error:
            self._broke(error)

    def _broke(self, error: TlsError) -> None:
        """There is no more encrypting; within a call of the protocol."""
        self._take()  # the alert
        self._end_soon(error)

    def _take(self) -> None:
        """Sends what OpenSSL has made; what the socket does not take is kept."""
        data = self._engine.take()
        while data:
            size = len(data)
            self._send(data)
            if size < TAKE_BYTES or self._over:
                return
            data = self._engine.take()

    def _send(self, data: memoryview) -> None:
        sent = 0
        if self._deaf is not None:
            return
        if not self._cipher:
            try:
                sent = self._sock.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError as error:
                self._write_failed(error)
                return
            if sent == len(data):
                return
        self._cipher.append(memoryview(bytes(data[sent:])))
        self._cipher_bytes += len(data) - sent
        self._watch()
        if self._cipher_bytes > MAX_UNREAD_BYTES:
            self._end_soon(ConnectionError("the peer does not read"))

    def _flush(self) -> None:
        cipher = self._cipher
        try:
            while cipher:
                piece = cipher[0]
                sent = self._sock.send(piece, socket.MSG_DONTWAIT)
                self._cipher_bytes -= sent
                if sent < len(piece):
                    cipher[0] = piece[sent:]
                    return
                cipher.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self._write_failed(error)
            return
        self._encrypt()
        if self._over:
            return
        self._watch()
        if self._closing:
            self._say_goodbye()
        else:
            self._relieve_if_low()

    def _relieve_if_low(self) -> None:
        if self._out_bytes <= self._low:
            self._relieve()

    def _write_failed(self, error: OSError) -> None:
        # not within a call of the protocol; nor can a handshake end within its own step
        self._drop()
        if self._factory is not None:
            self._deaf = error.with_traceback(None)  # which would hold us
            self._loop.call_soon(self._fail, error)
        elif self._peer_ended:
            self._end_soon(None)  # it wanted no more
        elif self._closing or not isinstance(error, ConnectionError):
            self._end_soon(error)
        else:
            # the kernel has what the peer said before, and then tells of its end
            self._deaf = error.with_traceback(None)  # which would hold us
            self._hung_up = True
            self._loop.call_soon(self._relieve)
            self._watch()

    def _drop(self) -> None:
        """Nothing waits any more."""
        self._out.clear()
        self._cipher.clear()
        self._out_bytes = self._cipher_bytes = 0

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport: what is encrypted already is counted too."""
        return self._out_bytes + self._cipher_bytes

    def can_write_eof(self) -> bool:
        """See asyncio.WriteTransport: TLS ends both directions at once here."""
        return False

    # -- the rest ---------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport: ``socket`` and ``peername``."""
        if name == "socket":
            return self._sock
        if name == "peername":
            try:
                return self._sock.getpeername()
            except OSError:
                return default  # it is gone
        return default

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """See asyncio.BaseTransport: behind what is written."""
        if self._closing:
            return
        self._closing = True
        if self._out and not self._cipher:
            # it waited for the rest of a message, and nothing is read any more
            self._encrypt()
            if self._over:
                return
            if not self._cipher:
                self._drop()
        self._watch()
        self._bound()
        self._say_goodbye()

    def _bound(self) -> None:
        """The end comes, unless the peer takes something of what it has not taken yet."""
        self._cancel_timer()
        self._look_again(self.untaken_bytes(), self._loop.time())

    def _look_again(self, left: int, since: float) -> None:
        self._timer = self._loop.call_later(SHUTDOWN_SECONDS, self._look, left, since)

    def _look(self, before: int, since: float) -> None:
        """``before`` is what was left at ``since``, when the peer last took something."""
        left, now = self.untaken_bytes(), self._loop.time()
        if left < before:
            since = now
        served = self._protocol is not None
        if now - since < (FLUSH_SECONDS if left and served else SHUTDOWN_SECONDS):
            self._look_again(left, since)
            return
        if left and served:
            peer = peer_name(self._sock.getpeername)
            logger.info("%s took nothing for %g s: closed with %d bytes", peer, FLUSH_SECONDS, left)
        self._end(None)

    def _say_goodbye(self) -> None:
        """Everything is written: close_notify, FIN, and a while for the peer to end as well."""
        if self._shut or self._over or self._out or self._cipher:
            return
        self._engine.close()
        self._take()
        if self._cipher or self._over:
            return  # the rest goes first
        self._shut = True
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            # one that ended first may be gone already, which is no fault
            self._end_soon(None if self._peer_ended else error)
            return
        if self._peer_ended:
            self._end_soon(None)
            return
        self._bound()
        self._watch()

    def _stop(self) -> None:
        self._cancel_timer()
        super()._stop()
        self._drop()
