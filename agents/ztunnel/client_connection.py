"""One HBONE connection to another proxy: being dialled, shaking hands, carrying streams, ending."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from _socket import socket as RawSocket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.connection import socket_cookie
from nodenet.agents.ztunnel.flow_facts import OUTBOUND, ResponseFlag
from nodenet.agents.ztunnel.poller import STREAM
from nodenet.agents.ztunnel.transport import Transport
from nodenet.agents.ztunnel.tunnel import CLOSED
from nodenet.errors import NodenetError
from nodenet.hbone.connection import Connection
from nodenet.hbone.errors import ErrorCode, code_name
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.hpack_codec import HeaderBlock
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from nodenet.identity import peer
from nodenet.identity.errors import CertificateUnavailable

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.pool import Pool

#: Host and port a socket comes from, and where it goes: `served.Flow`.
DialFlow = tuple[str | None, int, Address]
_FAILED: Final = select.EPOLLERR | select.EPOLLHUP
_CLIENT: Final = LocalSettings()


class ConnectFailed(NodenetError):
    """No connection to the peer; the message is what the access log says."""


class ConnectTimedOut(ConnectFailed):
    """The peer has not answered the SYN; where it once did, a policy may be in the way."""

    response_flag: ClassVar = ResponseFlag.NETWORK_POLICY

    def __init__(self) -> None:
        super().__init__(
            "connection timed out, maybe a NetworkPolicy is blocking HBONE port 15008: "
            f"{os.strerror(errno.ETIMEDOUT)}"
        )


class NotLookedAt(ConnectFailed):
    """The peer has not looked at the request, and says so: it may be made again, to it as well."""


class PoolClosed(NodenetError):
    """The pod is leaving."""


class PoolKey(NamedTuple):
    """What connections are shared by."""

    destination: Address
    identities: tuple[str, ...]
    """SPIFFE ids of which the peer must have one."""
    source: str | None
    """The address to come from, None for the kernel's choice."""
    identity: str
    """SPIFFE id we have: the pod's may become another one."""


class Opener(Protocol):
    """Wants one stream."""

    def connected(self, connection: ClientConnection) -> None:
        """Here is a connection with room; `ClientConnection.open` is to be called at once."""

    def answered(self, response: Response) -> None:
        """The peer has answered the CONNECT."""

    def not_connected(self, error: NodenetError) -> None:
        """There is none. Nothing was sent: another endpoint may be tried."""

    def refused(self, error: NodenetError, retry: bool) -> None:
        """The stream ended unanswered; ``retry``: another endpoint may be tried."""


class Connector(Protocol):
    """Makes the sockets and TLS settings of one pod's pool."""

    def dial_hbone(self, destination: Address) -> tuple[RawSocket, DialFlow]:
        """A socket on its way from inside the pod, and what `dial_over` wants. OSError."""

    def dial_over(self, flow: DialFlow) -> None:
        """That socket is gone."""

    def handshake_failed(self, error: NodenetError) -> None:
        """A connection has ended before it was ready."""

    def check_peer(self, connection: ssl.SSLObject, direction: str) -> None:
        """CertificateRevoked when the peer must not be talked to."""

    def client_certificate(self, use: Callable[[ssl.SSLContext | NodenetError], None]) -> None:
        """Calls back with TLS settings of the pod's certificate, now or when there is one."""


class ClientConnection:
    """One connection to a peer: being dialled, shaking hands, carrying streams, ending.

    It is the poller's target while it is being dialled; then the transport is. It owns the
    transport and handles what its core reports.
    """

    __slots__ = (
        "_context",
        "_core",
        "_dial_flow",
        "_pool",
        "_sock",
        "_waiting",
        "conn_id",
        "error",
        "key",
        "opened",
        "peer_identity",
        "since",
        "transport",
        "usable",
    )

    def __init__(self, pool: Pool, key: PoolKey) -> None:
        self._pool = pool
        self.key = key
        self._sock: RawSocket | None = None
        self._dial_flow: DialFlow | None = None
        self._context: ssl.SSLContext | None = None
        self._waiting: deque[Opener] = deque()
        self._core: Connection | None = None
        self.error: NodenetError | None = None
        """Why it is over; None while it is not."""
        self.transport: Transport | None = None
        self.usable = True
        """Takes new streams."""
        self.conn_id = ""
        """The kernel's id of its socket, hex, from the handshake on."""
        self.opened = 0
        """Streams since it was made."""
        self.peer_identity = ""
        """The peer's SPIFFE id, when the handshake is done."""
        self.since = pool.wires.loop.time()
        """Loop time in seconds when it was begun."""

    @property
    def idle(self) -> bool:
        """Whether it is there and carries nothing."""
        return self._core is not None and not self._core.active

    @property
    def streams(self) -> int:
        """Streams open now."""
        return 0 if self._core is None else self._core.active

    @property
    def failure(self) -> NodenetError | None:
        """Why its streams are lost; None while they are not."""
        if self.error is None and self.transport is not None:
            return self.transport.failure
        return self.error

    def has_room(self) -> bool:
        """Whether one more stream may be opened or wait for it."""
        core, limit = self._core, self._pool.max_streams
        if not self.usable:
            return False
        if core is None:
            return len(self._waiting) < limit
        return core.active < limit and core.can_open()

    def take(self, opener: Opener) -> None:
        """Has it opened when the connection is ready, which may be now."""
        if self._core is None:
            self._waiting.append(opener)
        else:
            opener.connected(self)

    def open(self, opener: Opener, block: HeaderBlock) -> Stream:
        """Sends a CONNECT; the opener hears the answer."""
        core, transport = self._core, self.transport
        assert core is not None and transport is not None
        stream = core.open(block)
        self.opened += 1
        stream.user = opener
        stream.receiver = _Unanswered(self, opener)
        self._pool.timers.idle.discard(self)
        transport.flush_soon()
        return stream

    def give_up(self, stream: Stream) -> None:
        """Ends a stream that has no tunnel yet, or whose CONNECT was refused."""
        core, transport = self._core, self.transport
        if core is not None and transport is not None and not stream.closed:
            core.reset(stream, ErrorCode.CANCEL)
            transport.flush_soon()
        stream.receiver = CLOSED
        self.ended()

    def ended(self) -> None:
        """One of its streams has ended (told by the stream's owner)."""
        core = self._core
        if core is None or core.closed or core.active or self.error is not None:
            return
        if self.usable:
            self._pool.timers.idle.discard(self)
            self._pool.timers.idle.add(self)
        else:
            self._close()

    def dial(self) -> None:
        """Begins to connect, once there is a certificate."""
        self._pool.timers.connects.add(self)
        self._pool.connector.client_certificate(self._certified)

    def _certified(self, context: ssl.SSLContext | NodenetError) -> None:
        if self.error is not None:
            return
        if isinstance(context, NodenetError):
            self._failed(context)
            return
        self._context = context
        pool = self._pool
        try:
            sock, self._dial_flow = pool.connector.dial_hbone(self.key.destination)
        except OSError as error:
            self._failed(_io_error(error.errno))
            return
        self._sock = sock
        try:
            pool.wires.poller.add(sock.fileno(), STREAM, self)
        except OSError as error:  # fs.epoll.max_user_watches, memory
            self._failed(_io_error(error.errno))

    def connect_expired(self) -> None:
        """There is no certificate, or the peer has not answered the SYN in time."""
        if self._context is None:
            self._failed(CertificateUnavailable("client", "none in time"))
        elif self.transport is None:
            self._failed(ConnectTimedOut())

    def retire(self) -> None:
        """Takes no new streams; ends in order when the last one has ended."""
        self._unusable()
        if self.error is not None:
            return
        if self._core is None:
            self.cut(PoolClosed("pool draining"))
        elif not self._core.active:
            self._close()

    def cut(self, error: NodenetError) -> None:
        """Ends it now, with every stream."""
        if self.error is not None:
            return
        if self.transport is None:
            self._failed(error)
        else:
            self.transport.abort(error)

    # -- poller.Target while connecting ----------------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`: the dial has come to something."""
        sock, pool = self._sock, self._pool
        if sock is None:
            return
        if mask & _FAILED:
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._failed(_io_error(number or errno.ECONNRESET))
        elif mask & select.EPOLLOUT:
            pool.timers.connects.discard(self)
            context = self._context
            assert context is not None
            self._sock = None
            transport = self.transport = Transport(pool.wires, sock, context, self, server=False)
            pool.wires.poller.hand_over(sock.fileno(), transport)
            transport.start()

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`."""
        self.cut(ConnectFailed("io error: internal error"))

    # -- transport.Owner -------------------------------------------------------------------------

    def secured(self, transport: Transport) -> Connection:
        """See `transport.Owner`."""
        self.peer_identity = str(peer.check_server(transport.tls, self.key.identities))
        self._pool.connector.check_peer(transport.tls, OUTBOUND)
        self.conn_id = socket_cookie(transport.sock)
        return Connection(Role.CLIENT, _CLIENT, self)

    def ready(self, transport: Transport) -> None:
        """See `transport.Owner`."""
        self._core = transport.core
        waiting = self._waiting
        while waiting and self.error is None:
            opener = waiting.popleft()
            if self.has_room():
                opener.connected(self)
            else:
                self._pool.checkout(self.key, opener)
        self.ended()  # those that waited may have gone away

    def lost(self, transport: Transport, error: NodenetError) -> None:
        """See `transport.Owner`."""
        core, self._core = self._core, None
        if core is None:
            self._pool.connector.handshake_failed(error)
        self._failed(error)
        if core is not None:
            core.lost()

    # -- hbone.Handler ---------------------------------------------------------------------------

    def on_request(self, stream: Stream, request: Request) -> None:
        """See `hbone.connection.Handler`: a server opens no streams; the core refuses them."""

    def on_response(self, stream: Stream, response: Response) -> None:
        """See `hbone.connection.Handler`."""
        stream.user.answered(response)

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """See `hbone.connection.Handler`: streams that the peer has not looked at know it."""
        self._unusable()
        self.ended()

    def on_writable(self) -> None:
        """See `hbone.connection.Handler`."""
        if self.transport is not None:
            self.transport.resume_waiting()

    def on_pong(self, opaque: bytes) -> None:
        """See `hbone.connection.Handler`: being read is what counts."""

    # -- the end ---------------------------------------------------------------------------------

    def _unusable(self) -> None:
        if self.usable:
            self.usable = False
            self._pool.unusable(self)

    def _close(self) -> None:
        core, transport = self._core, self.transport
        assert core is not None and transport is not None
        self._unusable()
        core.goaway(ErrorCode.NO_ERROR)
        transport.close()

    def _failed(self, error: NodenetError) -> None:
        if self.error is not None:
            return
        self.error = error
        pool = self._pool
        pool.timers.connects.discard(self)
        pool.timers.idle.discard(self)
        sock, self._sock = self._sock, None
        if sock is not None:
            pool.wires.poller.retire(sock.fileno(), sock)
        if self._dial_flow is not None:
            pool.connector.dial_over(self._dial_flow)
        self.usable = False
        pool.gone(self)
        waiting, self._waiting = self._waiting, deque()
        for opener in waiting:
            opener.not_connected(error)


class _Unanswered:
    """Receives for a stream whose CONNECT is not answered yet."""

    __slots__ = ("_connection", "_opener")

    def __init__(self, connection: ClientConnection, opener: Opener) -> None:
        self._connection = connection
        self._opener = opener

    def data(self, payload: memoryview) -> None:
        """Before the answer there is none; the core sees to that."""

    def ended(self) -> None:
        """With the answer: a refusal, which `Opener.answered` has told."""

    def reset(self, code: int) -> None:
        """The peer does not want it, or is gone."""
        lost = self._connection.failure
        if lost is not None:
            self._opener.refused(lost, True)
            return
        text = f"h2 failed: stream reset by the peer: {code_name(code)}"
        if code == ErrorCode.REFUSED_STREAM:
            self._opener.refused(NotLookedAt(text), True)
        else:
            self._opener.refused(ConnectFailed(text), False)
        self._connection.ended()

    def writable(self) -> None:
        """Nothing is written yet."""


def _io_error(number: int | None) -> ConnectFailed:
    return ConnectFailed(f"io error: {os.strerror(number or errno.EIO)}")
