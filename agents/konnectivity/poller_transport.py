"""What the transports on the server's and agent's own epoll have in common, and what accepts them.

They are asyncio transports with fewer calls a connection than the event loop's own. Their protocols
are asyncio.BufferedProtocols and do not know the difference. Readiness is level-triggered: a read
needs no second one to see that nothing is left.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from _socket import socket as RawSocket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from nodenet.agents.ztunnel.poller import LISTENER, Poller
from nodenet.konnectivity.payload_queue import CRUMB_BYTES, JOINED_BYTES

#: Connections taken in one go, before those that are there have their turn.
ACCEPT_BATCH: Final = 32
#: Before accepting is tried again when it failed, as without a free descriptor.
EXHAUSTED_SECONDS: Final = 0.1
_KIND: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
#: In the place of a mask: the poller does not know the socket yet. None of the EPOLL* bits.
UNWATCHED: Final = 1 << 32

_INT: Final = struct.Struct("i")

logger = logging.getLogger(__name__)


def in_kernel(sock: RawSocket) -> int:
    """Bytes that a socket took and still has: of TCP until they are acknowledged, else until read.

    tcp(7) and unix(7): SIOCOUTQ, which is TIOCOUTQ by another name.
    """
    try:
        raw = fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(_INT.size))
    except OSError:
        return 0  # it is over
    return int(_INT.unpack(raw)[0])


class Acceptor:
    """Accepts from a listening socket, which it owns; ``make`` gets each connection to keep."""

    def __init__(
        self, poller: Poller, sock: socket.socket, make: Callable[[RawSocket], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._poller = poller
        sock.setblocking(False)
        self._family = sock.family
        # of C: its methods are called once a connection
        self._sock = RawSocket(sock.family, sock.type | socket.SOCK_NONBLOCK, 0, sock.detach())
        self._fd = self._sock.fileno()
        self._make = make
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
            self._make(RawSocket(self._family, _KIND, 0, fd))

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`: one connection was cut, the listener goes on."""

    def _pause(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            logger.warning("cannot accept connections, trying on: %s", error)
        self._poller.modify(self._fd, 0)
        self._timer = self._loop.call_later(EXHAUSTED_SECONDS, self._rearm)

    def _rearm(self) -> None:
        self._timer = None
        self._poller.modify(self._fd, LISTENER)


class PollerTransport(asyncio.Transport):
    """One connection; see asyncio.Transport. A write goes to the kernel at once.

    A subclass reads and writes: `event`, `_watch`, and the methods of asyncio that this one lacks.
    """

    __slots__ = (
        "_closing",
        "_direct",
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
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: RawSocket,
        *,
        direct: bool = False,
    ) -> None:
        """``direct``: see `Poller.add_direct`."""
        self._direct = direct
        self._loop = loop
        self._poller = poller
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol: Any = None
        self._mask = UNWATCHED
        """What the poller tells."""
        self._out: deque[memoryview] = deque()
        """What the protocol wrote and the kernel has not taken."""
        self._out_bytes = 0
        self._high, self._low = 64 << 10, 16 << 10
        self._paused = False
        """The protocol was told to write no more."""
        self._reading = True
        self._peer_ended = False
        self._closing = False
        self._over = False

    # -- poller.Target ----------------------------------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`."""
        raise NotImplementedError

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`: the connection is cut."""
        self.abort()

    def _watch(self) -> None:
        """Has the poller tell what matters now."""
        raise NotImplementedError

    def _tell(self, wanted: int) -> None:
        if wanted == self._mask or self._over:
            return
        if self._mask == UNWATCHED:
            add = self._poller.add_direct if self._direct else self._poller.add
            add(self._fd, wanted, self)
        else:
            self._poller.modify(self._fd, wanted)
        self._mask = wanted

    # -- writing ----------------------------------------------------------------------------------

    def _queue(self, data: memoryview) -> None:
        out, size = self._out, len(data)
        self._out_bytes += size
        if size <= CRUMB_BYTES and out and len(out[-1]) <= JOINED_BYTES:
            out[-1] = memoryview(b"".join((out[-1], data)))
        else:
            out.append(data)

    def _relieve(self) -> None:
        """Tells the protocol that it may write again."""
        if self._paused and not self._over:
            self._paused = False
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return self._out_bytes

    def untaken_bytes(self) -> int:
        """What was written and the peer has not taken, which the kernel may have.

        It gets less with each read of a slow peer, while `get_write_buffer_size` only does when
        the kernel has room for a large piece again.
        """
        return 0 if self._over else self.get_write_buffer_size() + in_kernel(self._sock)

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

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._closing

    # -- the end ----------------------------------------------------------------------------------

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        self._end_soon(None)

    def _end_soon(self, error: Exception | None) -> None:
        """Not within a call of the protocol, which does not expect it."""
        if not self._over:
            self._stop()
            self._loop.call_soon(self._told, error)

    def _end(self, error: Exception | None) -> None:
        if not self._over:
            self._stop()
            self._told(error)

    def _stop(self) -> None:
        self._closing = self._over = True  # what the poller still tells is for nobody
        self._out.clear()
        self._out_bytes = 0

    def _told(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(error)
        finally:
            self._poller.retire(self._fd, self._sock)
