"""Unix stream sockets as asyncio transports, on the epoll that the agent's remotes use too.

A CONNECT tunnel lives for a few system calls; uvloop's own accept, handle and close cost more than
these. Here a connection is accepted, read and answered with accept4, epoll_ctl, recv and send, and
nothing else. The protocols are asyncio's and do not know the difference.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from _socket import socket as RawSocket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from nodenet.agents.ztunnel.poller import LISTENER, Poller
from nodenet.konnectivity.payload_queue import CRUMB_BYTES, JOINED_BYTES, MOST_PIECES
from nodenet.rpc.call import Buffer

#: Connections taken in one go, before those that are there have their turn.
ACCEPT_BATCH: Final = 32
#: Before accepting is tried again when it failed, as without a free descriptor.
EXHAUSTED_SECONDS: Final = 0.1
#: Both directions are shut, or the peer closed without having read everything. Always told.
_HUNG_UP: Final = select.EPOLLHUP | select.EPOLLERR
_KIND: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
#: In the place of a mask: the poller does not know the socket yet. None of the EPOLL* bits.
_UNWATCHED: Final = 1 << 32

logger = logging.getLogger(__name__)


class UnixServer:
    """Accepts from a listening Unix socket, which it owns; each connection gets a protocol."""

    def __init__(
        self,
        poller: Poller,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._poller = poller
        sock.setblocking(False)
        # of C: its methods are called once a connection
        self._sock = RawSocket(sock.family, sock.type | socket.SOCK_NONBLOCK, 0, sock.detach())
        self._fd = self._sock.fileno()
        self._factory = factory
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False
        poller.add(self._fd, LISTENER, self)

    def close(self) -> None:
        """Accepts no more; connections go on."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            # closing alone would not: who else has the socket open keeps it in the epoll
            self._poller.remove(fd)
            self._poller.retire(fd, self._sock)

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        accept = self._sock._accept  # type: ignore[attr-defined]  # not in typeshed
        for _ in range(ACCEPT_BATCH):
            if self._fd < 0:
                return  # closed by what a protocol did
            try:
                fd, _peer = accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause(error)
                return
            self._failing = False
            transport = UnixTransport(
                self._loop, self._poller, RawSocket(socket.AF_UNIX, _KIND, 0, fd)
            )
            try:
                transport.start(self._factory())
            except BaseException:
                transport.abort()
                raise

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`: one connection was cut, the listener goes on."""

    def _pause(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            logger.warning("cannot accept on the Unix socket, trying on: %s", error)
        self._poller.modify(self._fd, 0)
        self._timer = self._loop.call_later(EXHAUSTED_SECONDS, self._rearm)

    def _rearm(self) -> None:
        self._timer = None
        self._poller.modify(self._fd, LISTENER)


class UnixTransport(asyncio.Transport):
    """One connection; see asyncio.Transport. Its protocol is an asyncio.BufferedProtocol.

    What differs: a write goes to the kernel at once. Readiness is told level-triggered, so a read
    needs no second one to see that nothing is left. A peer that closed is read to its end before
    the connection is over, whatever is written meanwhile and though reading is paused: else what
    it wrote before it closed would be lost, or kept for as long as the pause lasts.
    """

    __slots__ = (
        "_closing",
        "_deaf",
        "_eof_queued",
        "_fd",
        "_high",
        "_loop",
        "_low",
        "_mask",
        "_out",
        "_out_bytes",
        "_over",
        "_paused",
        "_peer_ended",
        "_poller",
        "_protocol",
        "_reading",
        "_sock",
        "hung_up",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, poller: Poller, sock: RawSocket) -> None:
        self._loop = loop
        self._poller = poller
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol: Any = None
        self._mask = _UNWATCHED
        """What the poller tells."""
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._high, self._low = 64 << 10, 16 << 10
        self._paused = False
        """The protocol was told to write no more."""
        self._reading = True
        self._peer_ended = False
        self._eof_queued = False
        self._deaf: OSError | None = None
        """Why the peer takes nothing any more; what is for it is dropped."""
        self._closing = False
        self._over = False
        self.hung_up = False
        """The peer has closed altogether, not only its own direction (unix_poll in Linux)."""

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        """Makes the protocol's connection, and reads what is there already."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._watch()
        if self._mask & select.EPOLLIN:
            self._read()

    # -- poller.Target ----------------------------------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        if self._over:
            return
        if mask & _HUNG_UP:
            self.hung_up = True
        if self._readable() and mask & (select.EPOLLIN | _HUNG_UP):
            self._read()
            if self.hung_up:
                self._watch()
                return  # its last words are all read before a write fails
            if self._over:
                return
        if self._out:
            # one that is gone takes no more, which only a write tells
            if mask & (select.EPOLLOUT | _HUNG_UP):
                self._flush()
        elif mask & _HUNG_UP and self._peer_ended:
            # it ended its direction before, and now ours
            self._end(self._deaf)

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`: the connection is cut."""
        self.abort()

    def _watch(self) -> None:
        """Has the poller tell what matters now."""
        wanted = select.EPOLLOUT if self._out else 0
        if self._readable():
            wanted |= select.EPOLLIN
        if wanted == self._mask or self._over:
            return
        if self._mask == _UNWATCHED:
            self._poller.add(self._fd, wanted, self)
        else:
            self._poller.modify(self._fd, wanted)
        self._mask = wanted

    def _readable(self) -> bool:
        """Whether what the peer says is wanted: of one that is gone, all of it now."""
        return (self._reading or self.hung_up) and not (self._peer_ended or self._closing)

    def _read(self) -> None:
        protocol = self._protocol
        buffer = protocol.get_buffer(-1)
        try:
            size = self._sock.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if size:
            protocol.buffer_updated(size)
            return
        self._peer_ended = True
        if protocol.eof_received():
            self._watch()
        elif self._out:
            self.close()
        elif not self._closing:
            self._end(self._deaf)

    # -- writing ----------------------------------------------------------------------------------

    def write(self, data: Buffer | bytearray) -> None:
        """See asyncio.WriteTransport."""
        if self._closing or self._deaf is not None or not data:
            return
        sent = 0
        if not self._out:
            try:
                sent = self._sock.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError as error:
                self._write_failed(error)
                return
            if sent == len(data):
                return
        self._queue(memoryview(data)[sent:])
        self._held()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """See asyncio.WriteTransport."""
        if self._closing or self._deaf is not None:
            return
        ready = not self._out
        for data in list_of_data:
            if data:
                self._queue(memoryview(data))
        if ready and self._out:
            self._send()
        self._held()

    def _queue(self, data: memoryview) -> None:
        out, size = self._out, len(data)
        self._out_bytes += size
        if size <= CRUMB_BYTES and out and len(out[-1]) <= JOINED_BYTES:
            out[-1] = memoryview(b"".join((out[-1], data)))
        else:
            out.append(data)

    def _held(self) -> None:
        """After a write that may have left something."""
        if self._out:
            self._watch()
            if self._out_bytes > self._high and not self._paused:
                self._paused = True
                self._protocol.pause_writing()

    def _send(self) -> None:
        out = self._out
        try:
            while out:
                if len(out) == 1:
                    sent = self._sock.send(out[0], socket.MSG_DONTWAIT)
                else:
                    some = [out[at] for at in range(min(len(out), MOST_PIECES))]
                    sent = self._sock.sendmsg(some, (), socket.MSG_DONTWAIT)
                self._out_bytes -= sent
                while sent:
                    size = len(out[0])
                    if sent < size:
                        out[0] = out[0][sent:]
                        return
                    sent -= size
                    out.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self._write_failed(error)

    def _write_failed(self, error: OSError) -> None:
        self._out.clear()
        self._out_bytes = 0
        if self._closing or self._peer_ended:
            self._end_soon(error)
            return
        self._deaf = error
        self.hung_up = True
        if self._paused:
            self._loop.call_soon(self._relieve)
        self._watch()

    def _relieve(self) -> None:
        """Tells the protocol that it may write again."""
        if self._paused and not self._over:
            self._paused = False
            self._protocol.resume_writing()

    def _flush(self) -> None:
        self._send()
        if self._over:
            return
        if not self._out:
            if self._eof_queued:
                self._shut()
            if self._closing:
                self._end(None)
                return
            self._watch()
        if self._out_bytes <= self._low:
            self._relieve()

    def can_write_eof(self) -> bool:
        """See asyncio.WriteTransport."""
        return True

    def write_eof(self) -> None:
        """See asyncio.WriteTransport."""
        if not self._eof_queued and not self._closing:
            self._eof_queued = True
            if not self._out:
                self._shut()

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            logger.debug("a client was gone before its end: %s", error)

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return self._out_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio.WriteTransport."""
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    # -- reading ----------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._reading = False
        self._watch()

    def resume_reading(self) -> None:
        """See asyncio.ReadTransport."""
        self._reading = True
        self._watch()

    def is_reading(self) -> bool:
        """See asyncio.ReadTransport."""
        return self._reading and not self._closing

    # -- the rest ---------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See asyncio.BaseTransport."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """See asyncio.BaseTransport."""
        found: asyncio.BaseProtocol = self._protocol
        return found

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport: nothing is known of a Unix socket's peer."""
        return default

    # -- the end ----------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._closing

    def close(self) -> None:
        """See asyncio.BaseTransport: behind what is written."""
        if self._closing:
            return
        self._closing = True
        if self._out:
            self._watch()
        else:
            self._end_soon(None)

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        self._end_soon(None)

    def _end_soon(self, error: OSError | None) -> None:
        """Not within a call of the protocol, which does not expect it."""
        if not self._over:
            self._stop()
            self._loop.call_soon(self._told, error)

    def _end(self, error: OSError | None) -> None:
        if not self._over:
            self._stop()
            self._told(error)

    def _stop(self) -> None:
        self._closing = self._over = True  # what the poller still tells is for nobody
        self._out.clear()
        self._out_bytes = 0

    def _told(self, error: OSError | None) -> None:
        protocol, self._protocol = self._protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(error)
        finally:
            self._poller.retire(self._fd, self._sock)
