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
from collections.abc import Callable, Iterable
from typing import Any, Final

from nodenet.agents.konnectivity.poller_transport import Acceptor, PollerTransport
from nodenet.agents.ztunnel.poller import Poller
from nodenet.konnectivity.payload_queue import MOST_PIECES
from nodenet.rpc.call import Buffer

#: Both directions are shut, or the peer closed without having read everything. Always told.
_HUNG_UP: Final = select.EPOLLHUP | select.EPOLLERR

logger = logging.getLogger(__name__)


def serve_unix(
    poller: Poller, sock: socket.socket, factory: Callable[[], asyncio.BaseProtocol]
) -> Acceptor:
    """Serves a listening Unix socket, which is the acceptor's then; a protocol each connection."""
    loop = asyncio.get_running_loop()

    def make(sock: RawSocket) -> None:
        transport = UnixTransport(loop, poller, sock)
        try:
            transport.start(factory())
        except BaseException:
            transport.abort()
            raise

    return Acceptor(poller, sock, make)


class UnixTransport(PollerTransport):
    """One connection; see `PollerTransport`.

    A peer that closed is read to its end before the connection is over, whatever is written
    meanwhile and though reading is paused: else what it wrote before it closed would be lost, or
    kept for as long as the pause lasts.
    """

    __slots__ = ("_deaf", "_eof_queued", "hung_up")

    def __init__(self, loop: asyncio.AbstractEventLoop, poller: Poller, sock: RawSocket) -> None:
        super().__init__(loop, poller, sock)
        self._eof_queued = False
        self._deaf: OSError | None = None
        """Why the peer takes nothing any more; what is for it is dropped."""
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

    def _watch(self) -> None:
        """Has the poller tell what matters now."""
        wanted = select.EPOLLOUT if self._out else 0
        if self._readable():
            wanted |= select.EPOLLIN
        self._tell(wanted)

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
        self._deaf = error.with_traceback(None)  # which would hold us
        self.hung_up = True
        if self._paused:
            self._loop.call_soon(self._relieve)
        self._watch()

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

    # -- the rest ---------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio.BaseTransport: nothing is known of a Unix socket's peer."""
        return default

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """See asyncio.BaseTransport: behind what is written."""
        if self._closing:
            return
        self._closing = True
        if self._out:
            self._watch()
        else:
            self._end_soon(None)
