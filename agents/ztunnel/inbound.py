"""One tunnel that another proxy asks for: checked, dialled, answered, carried.

The checks of a CONNECT and their order are ztunnel's (src/proxy/inbound.rs); a refusal is an answer
with nothing but a status. The 200 is sent when the application has taken the connection, so what
the peer's application sees is the application's own readiness.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from _socket import socket as RawSocket
from typing import TYPE_CHECKING, Final

from nodenet.agents.ztunnel.admission import TUNNELLED_FILES
from nodenet.agents.ztunnel.connection import dialled_from
from nodenet.agents.ztunnel.decision import Reason
from nodenet.agents.ztunnel.ends import Draining, PolicyChanged, PolicyRejection
from nodenet.agents.ztunnel.flow_facts import INBOUND, ResponseFlag
from nodenet.agents.ztunnel.mesh_facts import inbound_facts
from nodenet.agents.ztunnel.poller import STREAM
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.agents.ztunnel.tunnel import CLOSED, Tunnel
from nodenet.errors import NodenetError
from nodenet.hbone.errors import ErrorCode, code_name
from nodenet.hbone.headers import Request
from nodenet.hbone.proxy_protocol import ProxyHeader, encode_proxy_header
from nodenet.hbone.stream import Stream
from nodenet.mesh.inbound import InboundRefused, InboundRoute
from nodenet.mesh.model import Workload
from nodenet.mesh.rbac import RbacContext

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.inbound_peer import InboundPeer
    from nodenet.agents.ztunnel.served import Flow as DialFlow
    from nodenet.agents.ztunnel.telemetry import OpenFlow

logger = logging.getLogger(__name__)

_FAILED: Final = select.EPOLLERR | select.EPOLLHUP
_ARRIVED: Final = select.EPOLLIN | select.EPOLLRDHUP


class UpstreamFailed(NodenetError):
    """The application does not take the connection."""


class Withdrawn(NodenetError):
    """The peer has given the tunnel up before the application had answered."""


class InboundFlow:
    """One CONNECT: checked, dialled, answered, tunnelled.

    It receives for its stream and is the target of its socket until there is a tunnel.
    """

    __slots__ = (
        "_dial_flow",
        "_early",
        "_ended_early",
        "_far",
        "_log",
        "_tunnel",
        "context",
        "over",
        "peer",
        "route",
        "started",
        "stream",
        "workload",
    )

    def __init__(self, peer: InboundPeer, stream: Stream) -> None:
        self.peer = peer
        self.stream = stream
        self.workload: Workload | None = None
        self.context: RbacContext | None = None
        self.route: InboundRoute | None = None
        self.over = False
        self.started = peer.pod.wires.loop.time()
        """Loop time in seconds."""
        self._far: RawSocket | None = None
        self._tunnel: Tunnel | None = None
        self._early = bytearray()
        """What the peer sent before the answer: at most the stream's window."""
        self._ended_early = False
        self._log: OpenFlow | None = None
        self._dial_flow: DialFlow | None = None

    @property
    def files(self) -> int:
        """Descriptors it needs."""
        return TUNNELLED_FILES

    @property
    def sent(self) -> int:
        """Payload bytes the pod has sent."""
        return 0 if self._tunnel is None else self._tunnel.sent

    @property
    def received(self) -> int:
        """Payload bytes the pod has received."""
        return 0 if self._tunnel is None else self._tunnel.received

    def begin(self, request: Request) -> None:
        """Checks a CONNECT, in ztunnel's order, and dials the application."""
        pod, peer = self.peer.pod, self.peer
        workload = self.workload = pod.workload()
        if workload is None:
            self._refuse_early(503, pod.unknown_workload())
            return
        try:
            route = self.route = pod.decide_inbound(workload, request, peer.local)
        except InboundRefused as error:
            self._refuse_early(error.status, error)
            return
        if pod.served.full:
            self._refuse_early(503, UpstreamFailed(f"{Reason.OVER_LIMIT.value}"))
            return
        pod.served.flow_begun(self)
        log = pod.telemetry.opened(inbound_facts(pod, self, workload, route, request), self)
        log.hbone_conn, log.stream_id = peer.conn_id, self.stream.id
        self._log = log
        self.context = RbacContext(peer.client_ip, peer.identity_text, route.destination)
        verdict = pod.admits(workload, self.context)
        pod.telemetry.judged(verdict.policy, verdict.allowed)
        if not verdict.allowed:
            self._refuse(401, PolicyRejection(verdict.text or ""))
            return
        log.policy = verdict.policy
        self._dial(route)

    def judge(self) -> None:
        """Ends it if the policies of this moment would not let it in."""
        if self.over or self.workload is None or self.context is None:
            return
        if not self.peer.pod.admits(self.workload, self.context).allowed:
            self.cut(PolicyChanged())

    def cut(self, error: NodenetError | None = None) -> None:
        """Ends it now; both applications see a reset."""
        if self.over:
            return
        error = error or Draining()
        if self._tunnel is not None:
            self._tunnel.cut(error)
            return
        self._reset_stream(ErrorCode.CANCEL)
        self._over(error)

    # -- hbone.Receiver, before there is a tunnel ------------------------------------------------

    def data(self, payload: memoryview) -> None:
        """See `hbone.connection.Receiver`: a peer may send before it has the answer."""
        self._early += payload

    def ended(self) -> None:
        """See `hbone.connection.Receiver`."""
        self._ended_early = True

    def reset(self, code: int) -> None:
        """See `hbone.connection.Receiver`."""
        transport = self.peer.transport
        lost = None if transport is None else transport.failure
        self._over(lost or Withdrawn(f"h2 failed: stream reset by the peer: {code_name(code)}"))

    def writable(self) -> None:
        """See `hbone.connection.Receiver`: nothing is written yet."""

    # -- poller.Target, while it dials -----------------------------------------------------------

    def event(self, mask: int) -> None:
        """See `poller.Target`: the dial has come to something."""
        far = self._far
        if far is None:
            return
        if mask & _FAILED:
            number = far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or errno.ECONNRESET
            self.dial_failed(number)
        elif mask & select.EPOLLOUT:
            self.peer.pod.context.inbound_dials.discard(self)
            self._connected(far, mask)

    def resume(self) -> None:
        """See `poller.Target`."""

    def broken(self) -> None:
        """See `poller.Target`."""
        self.cut(UpstreamFailed("io error: internal error"))

    def dial_failed(self, number: int) -> None:
        """The application cannot be reached, for this errno."""
        if not self.over:
            self._refuse(503, UpstreamFailed(f"connection failed: {os.strerror(number)}"))

    def dial_expired(self) -> None:
        """The application has not answered in time."""
        self.dial_failed(errno.ETIMEDOUT)

    # -- tunnel.TunnelOwner ----------------------------------------------------------------------

    def tunnel_ended(self, error: NodenetError | None) -> None:
        """See `tunnel.TunnelOwner`."""
        self._over(error)

    # --------------------------------------------------------------------------------------------

    def _dial(self, route: InboundRoute) -> None:
        pod = self.peer.pod
        try:
            far, self._dial_flow = pod.dial_application(self.peer.client, route)
        except OSError as error:
            self.dial_failed(error.errno or errno.EIO)
            return
        self._far = far
        if self._log is not None:
            self._log.dialled_from = dialled_from(self._dial_flow)
        pod.context.inbound_dials.add(self)
        try:
            pod.wires.poller.add(far.fileno(), STREAM, self)
        except OSError as error:  # fs.epoll.max_user_watches, memory
            self.dial_failed(error.errno or errno.EIO)

    def _connected(self, far: RawSocket, mask: int) -> None:
        pod, stream, route = self.peer.pod, self.stream, self.route
        transport = self.peer.transport
        assert transport is not None and transport.core is not None and route is not None
        assert self.workload is not None
        transport.core.respond(stream, 200, pod.fields.response_block(self.workload))
        transport.flush_soon()
        self._far = None
        early = self._early
        if route.proxy_target is not None:
            # after the 200, before the peer's bytes (ztunnel: src/proxy/inbound.rs)
            target, client = route.proxy_target, self.peer.client
            header = encode_proxy_header(
                ProxyHeader(
                    self.peer.client_ip,
                    client.port,
                    target.ip,
                    target.port,
                    self.peer.identity_text,
                )
            )
            try:
                sent = far.send(header, socket.MSG_DONTWAIT)
            except OSError as error:
                sent = -1
                logger.debug("PROXY header: %s", error)
            if sent != len(header):
                # a fresh socket's buffer holds it, so it is broken
                self._far = far
                self._reset_stream(ErrorCode.CANCEL)
                self._over(UpstreamFailed("io error: the application took no PROXY header"))
                return
        tunnel = self._tunnel = Tunnel(pod.wires, transport, stream, far, self)
        pod.wires.poller.hand_over(far.fileno(), tunnel)
        if early:
            tunnel.data(memoryview(bytes(early)))
            early.clear()
        if self._ended_early and not tunnel.over:
            tunnel.ended()
        if mask & _ARRIVED and not tunnel.over:
            tunnel.event(mask)

    def _refuse_early(self, status: int, error: NodenetError) -> None:
        """Before the connection counts: a line in the log, no metrics."""
        self.over = True
        self._answer(status)
        pod = self.peer.pod
        pod.telemetry.failed(self.peer.client, self.peer.local, INBOUND, error.message)
        self.peer.flow_ended(self)

    def _refuse(self, status: int, error: NodenetError) -> None:
        self._answer(status)
        self._over(error)

    def _answer(self, status: int) -> None:
        transport = self.peer.transport
        self.stream.receiver = CLOSED
        if transport is not None and transport.core is not None:
            transport.core.respond(self.stream, status, end_stream=True)
            transport.flush_soon()

    def _reset_stream(self, code: ErrorCode) -> None:
        transport = self.peer.transport
        self.stream.receiver = CLOSED
        if transport is not None and transport.core is not None and not self.stream.closed:
            transport.core.reset(self.stream, code)
            transport.flush_soon()

    def _over(self, error: NodenetError | None) -> None:
        if self.over:
            return
        self.over = True
        pod = self.peer.pod
        far, self._far = self._far, None
        if far is not None:
            reset_on_close(far)
            pod.wires.poller.retire(far.fileno(), far)
        pod.context.inbound_dials.discard(self)
        if self._dial_flow is not None:
            pod.served.dial_over(self._dial_flow)
        if self._log is not None:
            text = None if error is None else error.message
            self._log.closed(self.sent, self.received, text, ResponseFlag.of(error))
        pod.served.flow_ended(self)
        self.peer.flow_ended(self)
