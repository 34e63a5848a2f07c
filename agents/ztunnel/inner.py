"""A TLS connection inside a tunnel: the inner half of double HBONE (ztunnel: outbound.rs).

To another network a connection goes through that network's gateway: the outer tunnel ends there,
and the inner one, with its own TLS and HTTP/2, ends at the destination's proxy, so that the gateway
sees nothing. An inner connection belongs to one application connection and is not pooled.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, Protocol

from nodenet.agents.ztunnel.client_connection import ConnectFailed
from nodenet.agents.ztunnel.transport import FRAME_HEADER_BYTES, Transport, TransportLost, Wires
from nodenet.agents.ztunnel.tunnel import CLOSED
from nodenet.errors import NodenetError
from nodenet.hbone.connection import Connection
from nodenet.hbone.errors import ErrorCode, code_name
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.hpack_codec import HeaderBlock
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from nodenet.identity import peer

_SETTINGS: Final = LocalSettings()


class InnerTransport(Transport):
    """A transport whose wire is a stream of another one, which is answered already.

    It receives for that stream, and waits with the others when the outer connection is congested.
    What the outer stream brings is taken at once: the inner windows hold the sender back.
    """

    __slots__ = ("_outer", "_outer_over", "_outer_stream", "_outer_waiting")

    def __init__(
        self,
        wires: Wires,
        outer: Transport,
        stream: Stream,
        context: ssl.SSLContext,
        owner: InnerClient,
        outer_over: Callable[[], None],
    ) -> None:
        """``outer_over`` is told when the stream is over, which may be after the inner end."""
        super().__init__(wires, outer.sock, context, owner, server=False)
        self._plain = wires.inner_plain
        self._outer = outer
        self._outer_stream = stream
        self._outer_over = outer_over
        self._outer_waiting = False
        stream.receiver = self

    # -- hbone.Receiver: the outer stream --------------------------------------------------------

    def data(self, payload: memoryview) -> None:
        """See `hbone.connection.Receiver`."""
        if self.over:
            return
        core = self._outer.core
        assert core is not None
        core.consumed(self._outer_stream, len(payload))
        if not self.closing:
            self._incoming.write(payload)
            self.alive = True
            self.deliver()
            if not self.over:
                self.heard()

    def ended(self) -> None:
        """See `hbone.connection.Receiver`."""
        if not self.over:
            self._ended()

    def reset(self, code: int) -> None:
        """See `hbone.connection.Receiver`."""
        lost = self._outer.failure
        self.abort(lost or TransportLost(f"h2 failed: stream reset by the peer: {code_name(code)}"))

    def writable(self) -> None:
        """See `hbone.connection.Receiver`."""
        self.resume()

    def resume(self) -> None:
        """See `transport.Waiter`."""
        self._outer_waiting = False
        if not self.over and self.pending is not None:
            self._write_pending()

    # --------------------------------------------------------------------------------------------

    def _send_raw(self, data: bytes | memoryview) -> int:
        outer, stream = self._outer, self._outer_stream
        core = outer.core
        if core is None or outer.over or stream.closed:
            raise ConnectionResetError("the outer tunnel is over")
        view, sent = memoryview(data), 0
        while sent < len(view):
            room = 0 if outer.congested else core.sendable(stream)
            if room <= 0:
                # of a window of the stream's own we are told; else the transport's queue it is
                if (outer.congested or stream.send_window > 0) and not self._outer_waiting:
                    self._outer_waiting = True
                    outer.wait(self)
                break
            part = view[sent : sent + room]
            frame = bytearray(FRAME_HEADER_BYTES + len(part))
            core.write_data_header_into(frame, 0, stream, len(part))
            frame[FRAME_HEADER_BYTES:] = part
            outer.send(memoryview(frame))
            sent += len(part)
        if not sent:
            raise BlockingIOError
        return sent

    def _reset_on_release(self) -> None:
        """The stream is reset in any case."""

    def _shut(self) -> None:
        # the stream's end is awaited by a `_Drain`
        self._finish(TransportLost("io error: closed"))

    def _left(self) -> int:
        return 0 if self.pending is None else len(self.pending)

    def _release(self) -> None:
        outer, stream = self._outer, self._outer_stream
        stream.receiver = CLOSED
        outer.forget(self)
        core = outer.core
        if core is None or outer.over:
            return
        if stream.closed:
            self._outer_over()
            return
        if self.in_order:
            # a reset could overtake the last bytes within the gateway
            core.end(stream)
            if not stream.closed:
                drain = _Drain(self._wires, outer, stream, self._outer_over)
                stream.receiver = drain
                self._wires.drains.add(drain)
                outer.flush_soon()
                return
        else:
            core.reset(stream, ErrorCode.CANCEL)
        outer.flush_soon()
        self._outer_over()


class _Drain:
    """Waits for the end of a stream on which nothing is wanted any more."""

    __slots__ = ("_outer", "_over", "_stream", "_wires")

    def __init__(
        self, wires: Wires, outer: Transport, stream: Stream, over: Callable[[], None]
    ) -> None:
        self._wires = wires
        self._outer = outer
        self._stream = stream
        self._over = over

    def expire(self) -> None:
        """See `transport.Draining`: it has not come in time."""
        outer, stream = self._outer, self._stream
        stream.receiver = CLOSED
        if outer.core is not None and not outer.over and not stream.closed:
            outer.core.reset(stream, ErrorCode.CANCEL)
            outer.flush_soon()
            self._over()

    def data(self, payload: memoryview) -> None:
        """See `hbone.connection.Receiver`."""
        if self._outer.core is not None:
            self._outer.core.consumed(self._stream, len(payload))

    def ended(self) -> None:
        """See `hbone.connection.Receiver`."""
        self._wires.drains.discard(self)
        self._over()

    def reset(self, code: int) -> None:
        """See `hbone.connection.Receiver`."""
        self.ended()

    def writable(self) -> None:
        """See `hbone.connection.Receiver`."""


class InnerOpener(Protocol):
    """Wants the one stream of an inner connection."""

    def inner_answered(self, response: Response) -> None:
        """The far proxy has answered."""

    def inner_failed(self, error: NodenetError) -> None:
        """There will be no answer."""


class InnerClient:
    """The inner connection of one application connection: its owner and handler."""

    __slots__ = (
        "_answered",
        "_block",
        "_check",
        "_identities",
        "_live",
        "_opener",
        "peer_identity",
        "stream",
        "wire",
    )

    def __init__(
        self,
        opener: InnerOpener,
        identities: tuple[str, ...],
        block: HeaderBlock,
        *,
        check: Callable[[ssl.SSLObject], None],
        live: set[Transport],
    ) -> None:
        """``check`` raises TlsError when the peer must not be talked to; ``live`` has the wire."""
        self._opener = opener
        self._identities = identities
        self._block = block
        self._check = check
        self._live = live
        self._answered = False
        self.peer_identity = ""
        """The far proxy's SPIFFE id, when the handshake is done."""
        self.wire: InnerTransport | None = None
        self.stream: Stream | None = None

    def start(
        self,
        wires: Wires,
        outer: Transport,
        stream: Stream,
        context: ssl.SSLContext,
        outer_over: Callable[[], None],
    ) -> None:
        """Begins the handshake within the outer stream; `InnerTransport` for ``outer_over``."""
        self.wire = InnerTransport(wires, outer, stream, context, self, outer_over)
        self._live.add(self.wire)
        self.wire.start()

    def close(self) -> None:
        """Ends it, and with it the outer stream."""
        if self.wire is not None:
            self.wire.close()

    # -- transport.Owner -------------------------------------------------------------------------

    def secured(self, transport: Transport) -> Connection:
        """See `transport.Owner`."""
        self.peer_identity = str(peer.check_server(transport.tls, self._identities))
        self._check(transport.tls)
        return Connection(Role.CLIENT, _SETTINGS, self)

    def ready(self, transport: Transport) -> None:
        """See `transport.Owner`."""
        core = transport.core
        assert core is not None
        self.stream = core.open(self._block)
        self.stream.receiver = self
        transport.flush_soon()

    def lost(self, transport: Transport, error: NodenetError) -> None:
        """See `transport.Owner`."""
        self._live.discard(transport)
        if transport.core is not None:
            transport.core.lost()
        self._fail(error)

    # -- hbone.Handler ---------------------------------------------------------------------------

    def on_request(self, stream: Stream, request: Request) -> None:
        """See `hbone.connection.Handler`: a server opens no streams; the core refuses them."""

    def on_response(self, stream: Stream, response: Response) -> None:
        """See `hbone.connection.Handler`."""
        self._answered = True
        self._opener.inner_answered(response)

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """See `hbone.connection.Handler`: there is one stream, and it goes on."""

    def on_writable(self) -> None:
        """See `hbone.connection.Handler`."""
        if self.wire is not None:
            self.wire.resume_waiting()

    def on_pong(self, opaque: bytes) -> None:
        """See `hbone.connection.Handler`: being read is what counts."""

    # -- hbone.Receiver, before the answer -------------------------------------------------------

    def data(self, payload: memoryview) -> None:
        """See `hbone.connection.Receiver`: there is none before the answer."""

    def ended(self) -> None:
        """See `hbone.connection.Receiver`: with the answer, which is a refusal then."""

    def reset(self, code: int) -> None:
        """See `hbone.connection.Receiver`."""
        self._fail(ConnectFailed(f"h2 failed: stream reset by the peer: {code_name(code)}"))

    def writable(self) -> None:
        """See `hbone.connection.Receiver`: nothing is written yet."""

    def _fail(self, error: NodenetError) -> None:
        if not self._answered:
            self._answered = True
            self._opener.inner_failed(error)
