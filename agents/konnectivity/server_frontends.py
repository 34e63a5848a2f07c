"""Frontends on the wire: Proxy streams, and CONNECT sockets as asyncio protocols.

No task, future or queue a packet: a callback of the socket ends in the agent's queue, a callback of
the agent's stream in the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from nodenet.agents.konnectivity.poller_transport import PollerTransport
from nodenet.agents.konnectivity.unix_transport import UnixTransport
from nodenet.konnectivity import extensions
from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.grpc_frontend import Phase, ProxyStream
from nodenet.konnectivity.http_connect import (
    ESTABLISHED,
    BadHead,
    error,
    pull_head,
    refused,
)
from nodenet.konnectivity.server_core import ServerCore
from nodenet.konnectivity.server_tunnel import Refusal, Tunnel
from nodenet.rpc import read_buffer
from nodenet.rpc.call import Buffer, Call, CallHandler
from nodenet.rpc.status import OK, Code, Status

#: For a client to send its whole request (upstream: 60).
HEAD_SECONDS: Final = 60.0
#: For a client to take some of what is left for it after the tunnel's end; until it has all of it.
FLUSH_SECONDS: Final = 30.0
#: Bytes a client may send ahead of the 200 before it is read no more.
EARLY_BYTES: Final = 256 << 10
#: What the socket's transport holds before the client counts as congested.
WRITE_HIGH_BYTES: Final = 256 << 10
WRITE_LOW_BYTES: Final = 64 << 10

#: What a client that knows extensions is told.
_OFFER: Final = ((extensions.KEY, extensions.OURS.text()),)

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Frontends:
    """What all frontends share, and how many there are."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core
        self.loop = asyncio.get_running_loop()
        self.streams: set[GrpcFrontend] = set()
        self.sockets: dict[ConnectProtocol, None] = {}
        self.waiting: dict[ConnectProtocol, float] = {}
        """Sockets without a whole request, and until when they have time for it."""
        self.closing: dict[ConnectProtocol, float] = {}
        """Sockets whose client is to take some of what is left, and until when."""
        self.refusing = False
        """No new dials: the server is about to end."""

    @property
    def unfinished(self) -> int:
        """Clients whose tunnel is over and that have not been sent all of it."""
        return len(self.closing) + sum(each.owes for each in self.streams)

    def tick(self, now: float) -> None:
        """Ends what has taken too long."""
        for table, act in ((self.waiting, _too_late), (self.closing, _too_slow)):
            for protocol, due in list(table.items()):
                if due > now:
                    break  # in the order of their beginning
                del table[protocol]
                act(protocol)

    def accept(self, call: Call) -> CallHandler:
        """The handler of a new Proxy stream."""
        return GrpcFrontend(self, call)

    def connect_protocol(self) -> ConnectProtocol:
        """The protocol of a new CONNECT socket."""
        return ConnectProtocol(self)


def _too_late(protocol: ConnectProtocol) -> None:
    protocol.answer(error(408, "no request in time\n"))


def _too_slow(protocol: ConnectProtocol) -> None:
    protocol.look_after_end()


class GrpcFrontend(CallHandler):
    """A Proxy stream's call, which is the line of its core."""

    def __init__(self, frontends: Frontends, call: Call) -> None:
        self._frontends = frontends
        self._call = call
        peer = extensions.parse(dict(call.metadata).get(extensions.KEY))
        self.stream = ProxyStream(frontends.core, call, peer)
        self._ended = False
        frontends.streams.add(self)
        if frontends.refusing:
            call.end(Status(Code.UNAVAILABLE, "server is shutting down"))
        elif peer != extensions.NONE:
            call.answer(_OFFER)

    @property
    def owes(self) -> bool:
        """Whether the tunnel is over, and the client listens and has not been sent all of it."""
        stopped = self.stream.phase is Phase.STOPPED and not self._ended
        return stopped and (self.stream.waiting or self._call.unsent > 0)

    def received(self, message: bytes) -> None:
        """See `CallHandler`: a packet."""
        self._received(self.stream.receive, message)

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        """See `CallHandler`: a packet that is large."""
        self._received(self.stream.receive_pieces, pieces)

    def _received(self, take: Callable[[T, float], None], message: T) -> None:
        try:
            take(message, self._frontends.loop.time())
        except MalformedPacket as error:
            self._call.fail(Status(Code.INTERNAL, error.message))

    def pull(self) -> Sequence[Buffer] | None:
        """See `CallHandler`: the next packet."""
        return self.stream.pull()

    def ended(self) -> None:
        """See `CallHandler`: the client is done."""
        self._ended = True
        self.stream.ended(self._frontends.loop.time())
        self._call.end(OK)

    def closed(self, status: Status) -> None:
        """See `CallHandler`: the stream is over."""
        self._frontends.streams.discard(self)
        if status.code is not Code.OK:
            counts = self._frontends.core.counts
            counts.stream_error("from_client", status.code.camel, "Unknown")
        self.stream.ended(self._frontends.loop.time())

    def cut(self, text: str) -> None:
        """Ends the stream from here."""
        self._call.fail(Status(Code.UNAVAILABLE, text))


class _Gone(asyncio.Transport):
    """In the place of a transport that is over."""

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        pass

    def writelines(self, list_of_data: object) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


GONE: Final = _Gone()


class ConnectProtocol(asyncio.BufferedProtocol):
    """One CONNECT socket; also the `Frontend` of its tunnel."""

    __slots__ = (
        "_buffer",
        "_early",
        "_early_end",
        "_frontends",
        "_head",
        "_held",
        "_left",
        "_loop",
        "_open",
        "_over",
        "congested",
        "half_close",
        "transport",
        "tunnel",
    )

    transport: asyncio.Transport

    def __init__(self, frontends: Frontends) -> None:
        self.half_close = False
        self.congested = False
        self.tunnel: Tunnel | None = None
        self._buffer = read_buffer.shared()
        self._frontends = frontends
        self._loop = frontends.loop
        self._head = b""
        self._early = b""
        self._early_end = False
        self._open = False
        self._over = False
        """Nothing the client sends matters any more."""
        self._held = False
        self._left = 0
        """Bytes the client had still to take when that was last looked at."""

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        # uvloop's transports are asyncio's by their methods only
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        # TLS has no end of one direction here
        self.half_close = self.transport.can_write_eof()
        frontends = self._frontends
        frontends.sockets[self] = None
        frontends.waiting[self] = self._loop.time() + HEAD_SECONDS

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._buffer.get()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self.data_received(self._buffer.filled(nbytes))

    def data_received(self, data: Buffer) -> None:
        """Bytes of the client, which may be kept."""
        tunnel = self.tunnel
        if self._open:
            assert tunnel is not None
            tunnel.send(data, 0, len(data))
        elif tunnel is not None:
            self._early += data
            if len(self._early) > EARLY_BYTES:
                self.hold()
        elif not self._over:
            self._head += data
            self._begin()

    def eof_received(self) -> bool:
        """See asyncio.Protocol; True: the client still listens."""
        tunnel = self.tunnel
        if tunnel is None or self._over:
            return False
        if self._open:
            if self.half_close and not self._gone():
                tunnel.end_of_data(self._loop.time())
            else:
                tunnel.close(self._loop.time())
            return tunnel.frontend is not None
        if self._early and self.half_close:
            self._early_end = True
            return True
        self._finish()
        tunnel.close(self._loop.time())  # gone while it was dialled
        return False

    def _gone(self) -> bool:
        """Whether the client has closed its socket altogether.

        Only a Unix socket tells; over TCP it looks like the end of one direction until something
        is written to it.
        """
        return isinstance(self.transport, UnixTransport) and self.transport.hung_up

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        frontends = self._frontends
        frontends.sockets.pop(self, None)
        frontends.waiting.pop(self, None)
        frontends.closing.pop(self, None)
        if exc is None and self._early_end and not self._open and self.tunnel is not None:
            # all it had to say came before the dial's answer: that is still delivered
            self.transport = GONE
            return
        self._finish()
        tunnel, self.tunnel = self.tunnel, None
        if tunnel is not None:
            tunnel.close(self._loop.time())
        # the two hold each other: without this only the garbage collector ends them
        self.transport = GONE

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self.congested = True

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self.congested = False
        if self.tunnel is not None:
            self.tunnel.drained(self._loop.time())

    # -- the request ----------------------------------------------------------------------------

    def _begin(self) -> None:
        found = pull_head(self._head)
        if found is None:
            return
        frontends = self._frontends
        frontends.waiting.pop(self, None)
        self._head = b""
        if isinstance(found, BadHead):
            self.answer(found.answer())
            return
        if frontends.refusing:
            self.answer(error(503, "server is shutting down\n"))
            return
        self._early = found.payload
        dialled = frontends.core.dial(self, found.address, self._loop.time())
        if isinstance(dialled, Tunnel):
            self.tunnel = dialled
            if len(self._early) > EARLY_BYTES:
                self.hold()
        else:
            self.answer(refused(dialled))

    def answer(self, raw: bytes) -> None:
        """Sends an answer that ends the connection."""
        self._finish()
        self.transport.write(raw)
        self._close()

    def _finish(self) -> None:
        self._over = True
        self._open = False
        self._head = self._early = b""

    def _close(self) -> None:
        """Closes behind what is written; a client that takes nothing has its limit."""
        if self.transport.get_write_buffer_size():
            self._left = self._untaken()
            self._frontends.closing[self] = self._loop.time() + FLUSH_SECONDS
        self.transport.close()

    def look_after_end(self) -> None:
        """`FLUSH_SECONDS` are over: who has taken nothing is cut, the others have as much again."""
        left = self._untaken()
        if left < self._left:
            self._left = left
            self._frontends.closing[self] = self._loop.time() + FLUSH_SECONDS
            return
        logger.info("a client took nothing for %g s: cut with %d bytes", FLUSH_SECONDS, left)
        self.transport.abort()

    def _untaken(self) -> int:
        transport = self.transport
        if isinstance(transport, PollerTransport):
            return transport.untaken_bytes()
        return transport.get_write_buffer_size()  # plain TCP, by the loop

    # -- Frontend -------------------------------------------------------------------------------

    def connected(self, tunnel: Tunnel) -> None:
        """See `Frontend`."""
        self._open = True
        self.transport.write(ESTABLISHED)
        early, self._early = self._early, b""
        if early:
            tunnel.send(early, 0, len(early))
            if not tunnel.held:
                self.release()
        if self.transport is GONE:
            self.tunnel = None
            self._finish()
            tunnel.close(self._loop.time())
        elif self._early_end:
            tunnel.end_of_data(self._loop.time())
            if tunnel.frontend is None:
                self._finish()
                self._close()

    def refused(self, tunnel: Tunnel, refusal: Refusal) -> None:
        """See `Frontend`."""
        self.tunnel = None
        self.answer(refused(refusal))

    def data(self, tunnel: Tunnel, message: Buffer, start: int, end: int) -> None:
        """See `Frontend`."""
        self.transport.write(memoryview(message)[start:end] if start else message)

    def data_pieces(self, tunnel: Tunnel, pieces: Sequence[Buffer]) -> None:
        """See `Frontend`."""
        self.transport.writelines(pieces)

    def remote_ended(self, tunnel: Tunnel) -> None:
        """See `Frontend`."""
        if not self.transport.is_closing():
            self.transport.write_eof()

    def closed(self, tunnel: Tunnel, error: str, *, lost: bool) -> None:
        """See `Frontend`."""
        self.tunnel = None
        self._finish()
        if lost:
            self.transport.abort()
        else:
            self._close()

    def backlog(self) -> int:
        """See `Frontend`."""
        return self.transport.get_write_buffer_size()

    def hold(self) -> None:
        """See `Frontend`."""
        if not self._held and not self.transport.is_closing():
            self._held = True
            self.transport.pause_reading()

    def release(self) -> None:
        """See `Frontend`."""
        if self._held:
            self._held = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
