"""Copies bytes between two connected sockets until both directions have ended. The hot path.

What one side sends arrives at the other unchanged and in order; the end of one side's stream
(FIN) becomes the end of the other's once everything before it is written, while the reverse
direction goes on; a reset of one side becomes a reset of the other.

A direction is read only while nothing waits to be written, so a slow receiver slows the sender
down through TCP itself, and what the relay holds for it is one read at most. All directions share
one read buffer: an idle connection owns no buffer at all.

A stream that fills the whole buffer is a bulk transfer. From then on its pages are moved from
socket to socket through one pipe (splice(2)), which never crosses user space: measured 0.22
instead of 0.40 CPU seconds a GB. What the receiver does not take is read out of the pipe at once,
so the pipe is empty between two calls and one is enough for all connections.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from _socket import socket as RawSocket
from typing import Final, Protocol

from nodenet.agents.ztunnel.poller import STREAM, Poller

#: Bytes of the shared read buffer; with less the system calls of bulk transfers become visible.
BUFFER_BYTES: Final = 256 * 1024
#: Bytes the pipe is asked to hold: the most a stalled bulk direction has in memory.
PIPE_BYTES: Final = 1024 * 1024
#: Reads of one direction before the other connections get their turn.
ROUNDS: Final = 4
#: A spliced stream that yields less than this at a time is read normally again.
BULK_BYTES: Final = 16 * 1024

_RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_READABLE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
#: With one of these a short read does not mean that nothing is left: the end is still to be read,
#: or what follows urgent data, at which every read stops.
_ENDING: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLPRI
_SPLICE: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class Owner(Protocol):
    """Whose connection it is."""

    def relay_ended(self, error: OSError | None) -> None:
        """Both sockets are being closed; ``error`` is None when both streams ended well."""


def reset_on_close(sock: RawSocket) -> None:
    """Makes close() send a RST and drop what is unsent, so that the peer sees an error."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)


class Relay:
    """What all connections of one poller share: the read buffer and the pipe."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.pipe_out, self.pipe_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self.pipe_in, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError as error:
            # over the user's limit of pipe pages: smaller moves, otherwise the same
            if error.errno not in (errno.EPERM, errno.EBUSY):
                raise

    def close(self) -> None:
        """Closes the pipe. No connection may be left."""
        os.close(self.pipe_in)
        os.close(self.pipe_out)

    def join(self, near: RawSocket, far: RawSocket, owner: Owner) -> tuple[Leg, Leg]:
        """Starts copying between two connected sockets, which belong to the relay from now on.

        ``far`` is watched already (its dial was), ``near`` is not.
        """
        a, b = Leg(self, near, owner), Leg(self, far, owner)
        a.peer, b.peer = b, a
        self.poller.hand_over(b.fd, b)
        self.poller.add(a.fd, STREAM, a)
        return a, b


class Leg:
    """One socket of a connection: reads from it, and holds what is still to be written to it."""

    __slots__ = (
        "_relay",
        "bulk",
        "ended",
        "fd",
        "owner",
        "peer",
        "pending",
        "queued",
        "received",
        "shut",
        "sock",
    )

    peer: Leg

    def __init__(self, relay: Relay, sock: RawSocket, owner: Owner) -> None:
        self._relay = relay
        self.sock = sock
        self.fd = sock.fileno()
        self.owner = owner
        self.received = 0
        """Bytes read from it, all of them passed on or pending at the peer."""
        self.pending: memoryview | None = None
        """What could not be written to it yet."""
        self.ended = False
        """Nothing more is to be read: its stream has ended, or the connection is over."""
        self.shut = False
        """Nothing more is to be written: the peer's stream has ended and is passed on."""
        self.bulk = False
        self.queued = False
        """Its share of a turn was used up; it goes on in the next."""

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        if mask & select.EPOLLERR and (self.ended or self.peer.pending is not None):
            # Nobody will read the error. What the reset side had sent and the other side has not
            # taken is dropped, as TCP drops it when a reset overtakes a full window.
            self._cut(self._socket_error())
            return
        if mask & select.EPOLLOUT and self.pending is not None:
            self._flush()
        if mask & _READABLE and not (self.ended or self.queued) and self.peer.pending is None:
            self._pump(bool(mask & _ENDING))

    def resume(self) -> None:
        """See `poller.Target`: reads on where the last turn's share was used up."""
        self.queued = False
        if not self.ended and self.peer.pending is None:
            self._pump(True)

    def broken(self) -> None:
        """See `poller.Target`."""
        self._cut(OSError(errno.EIO, "internal error"))

    def cut(self) -> None:
        """Resets both sides."""
        self._cut(OSError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED)))

    def _pump(self, to_the_end: bool) -> None:
        """Passes on what there is, at most `ROUNDS` reads of it.

        ``to_the_end``: a read that does not fill the buffer is not the last one.
        """
        relay, peer = self._relay, self.peer
        buffer, receive, send = relay.buffer, self.sock.recv_into, peer.sock.send
        for _ in range(ROUNDS):
            if self.bulk:
                if self._move():
                    continue
                return
            try:
                count = receive(buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                self._cut(error)
                return
            if not count:
                self._end()
                return
            self.received += count
            try:
                sent = send(buffer[:count], socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._peer_broke(error)
                return
            if sent < count:
                peer.pending = memoryview(bytes(buffer[sent:count]))
                return
            if count == BUFFER_BYTES:
                self._start_bulk()
            elif not to_the_end:
                # The socket is empty: on a stream a read is short for no other reason, and what
                # comes later is a new event.
                return
        self.queued = True
        relay.poller.again(self)

    def _start_bulk(self) -> None:
        self.bulk = True
        # splice goes by the descriptors' flag; everything else here does not need it set
        os.set_blocking(self.fd, False)
        os.set_blocking(self.peer.fd, False)

    def _move(self) -> bool:
        """One splice through the pipe; whether to go on reading."""
        relay, peer = self._relay, self.peer
        try:
            left = os.splice(self.fd, relay.pipe_in, PIPE_BYTES, flags=_SPLICE)
        except BlockingIOError:
            return False
        except OSError as error:
            self._cut(error)
            return False
        if not left:
            self._end()
            return False
        self.received += left
        self.bulk = left >= BULK_BYTES
        try:
            while left:
                moved = os.splice(relay.pipe_out, peer.fd, left, flags=_SPLICE)
                if not moved:
                    raise RuntimeError(f"{left} bytes of the pipe have vanished")
                left -= moved
        except BlockingIOError:
            peer.pending = self._empty_pipe(left)
            return False
        except OSError as error:
            self._empty_pipe(left)
            self._peer_broke(error)
            return False
        return True

    def _empty_pipe(self, left: int) -> memoryview:
        """What is in the pipe, ``left`` bytes: the pipe is shared and must not keep anything."""
        parts: list[bytes] = []
        while left:
            part = os.read(self._relay.pipe_out, left)
            left -= len(part)
            parts.append(part)
        return memoryview(b"".join(parts))

    def _flush(self) -> None:
        """Writes what is pending; when all of it is gone, the peer is read again."""
        pending = self.pending
        assert pending is not None
        try:
            sent = self.sock.send(pending, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self.peer._peer_broke(error)
            return
        if sent < len(pending):
            self.pending = pending[sent:]
            return
        self.pending = None
        self.peer._pump(True)

    def _end(self) -> None:
        """The stream read from this socket is over, and all of it is written."""
        self.ended = True
        self.peer._shut()

    def _shut(self) -> None:
        """Ends the stream written to this socket, or the whole connection if it was the last."""
        if self.ended and self.peer.shut:
            self._finish(None)  # close() sends the FIN
            return
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:  # ENOTCONN: reset meanwhile
            self._cut(error)
            return
        self.shut = True

    def _peer_broke(self, error: OSError) -> None:
        """The peer does not take any more: passes on what it had sent before, then cuts."""
        buffer = self._relay.buffer
        try:
            while self.pending is None:
                count = self.peer.sock.recv_into(buffer, 0, socket.MSG_DONTWAIT)
                if not count or self.sock.send(buffer[:count], socket.MSG_DONTWAIT) < count:
                    break
                self.peer.received += count
        except OSError:
            pass  # its end, or ours: it is cut either way, and for the first error
        self._cut(error)

    def _cut(self, error: OSError) -> None:
        if self.fd >= 0:
            reset_on_close(self.sock)
            reset_on_close(self.peer.sock)
            self._finish(error)

    def _finish(self, error: OSError | None) -> None:
        """Gives both sockets up. The two legs must not be used any more."""
        legs = self, self.peer
        self.owner.relay_ended(error)
        for leg in legs:
            leg.ended = leg.shut = True
            leg.pending = None
            fd, leg.fd = leg.fd, -1
            self._relay.poller.retire(fd, leg.sock)
            del leg.peer  # no cycle is left for the garbage collector

    def _socket_error(self) -> OSError:
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.ECONNRESET
        return OSError(number, os.strerror(number))
