"""One application's connection on its way out through HBONE: decided, opened, tunnelled, ended.

Nothing is read from the application before the peer has answered the CONNECT, so up to then the
whole thing can be tried again with another endpoint, or with the same one when it says that it has
not looked at the request, or when a connection of the pool turns out to be dead: once (ztunnel does
not retry).
"""

from __future__ import annotations

import http
import os
import ssl
from _socket import socket as RawSocket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nodenet.abi import MARK
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.admission import TUNNELLED_FILES
from nodenet.agents.ztunnel.client_connection import (
    ClientConnection,
    ConnectFailed,
    NotLookedAt,
    PoolKey,
)
from nodenet.agents.ztunnel.decision import Route as Dial
from nodenet.agents.ztunnel.ends import Draining
from nodenet.agents.ztunnel.flow_facts import OUTBOUND, FlowFacts, ResponseFlag
from nodenet.agents.ztunnel.inner import InnerClient
from nodenet.agents.ztunnel.mesh_facts import inner_facts, outbound_facts
from nodenet.agents.ztunnel.poller import STREAM
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.agents.ztunnel.transport import Transport, TransportLost
from nodenet.agents.ztunnel.tunnel import Tunnel
from nodenet.endpoint import IPAddress
from nodenet.errors import NodenetError
from nodenet.hbone.headers import Response
from nodenet.hbone.stream import Stream
from nodenet.mesh.model import Workload
from nodenet.mesh.refused import NoResolvedAddresses, Refused
from nodenet.mesh.route import Protocol, Route

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.mesh_pod import MeshPod
    from nodenet.agents.ztunnel.telemetry import OpenFlow

#: Endpoints tried for one connection.
ATTEMPTS: Final = 2
#: Draws until another endpoint than the failed one comes up.
_DRAWS: Final = 64
_OK: Final = 200
_UNAVAILABLE: Final = 503


class HttpStatus(NodenetError):
    """The peer refused the tunnel; ``status`` is its answer."""

    def __init__(self, status: int) -> None:
        try:
            reason = f"{status} {http.HTTPStatus(status).phrase}"
        except ValueError:
            reason = str(status)
        super().__init__(f"http status: {reason}")
        self.status = status


class OutboundFlow:
    """A connection accepted on 15001 whose way is decided by the mesh."""

    __slots__ = (
        "_attempts",
        "_connection",
        "_facts",
        "_inner",
        "_log",
        "_pod",
        "_stream",
        "_tunnel",
        "client",
        "near",
        "original",
        "over",
        "route",
        "source",
        "started",
    )

    def __init__(self, pod: MeshPod, near: RawSocket, client: Address, original: Address) -> None:
        self._pod = pod
        self.near = near
        self.client = client
        self.original = original
        self.started = pod.wires.loop.time()
        """Loop time in seconds."""
        self.over = False
        self.source: Workload | None = None
        self.route: Route | None = None
        self._attempts = 0
        self._connection: ClientConnection | None = None
        self._stream: Stream | None = None
        self._tunnel: Tunnel | None = None
        self._inner: InnerClient | None = None
        self._log: OpenFlow | None = None
        self._facts: FlowFacts | None = None
        """What is to be counted when it is known who is behind the gateway."""

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

    def begin(self) -> None:
        """Decides and sets out; called once, in the poller's turn."""
        pod = self._pod
        source = self.source = pod.workload()
        if source is None:
            pod.await_workload(self)
            return
        try:
            route = self.route = pod.decide_outbound(source, self.client, self.original)
        except Refused as error:
            self._refuse(error)
            return
        if route.resolve is not None:
            pod.resolve(self, route.resolve.hostname)
            return
        self._set_out(source, route)

    def resolved(self, addresses: Sequence[IPAddress] | None) -> None:
        """What the look-up of the destination's hostname has come to; None: it failed."""
        source, route = self.source, self.route
        if self.over or source is None or route is None or route.resolve is None:
            return
        self._pod.lookup_over(self)
        try:
            if addresses is None:
                raise NoResolvedAddresses(route.resolve.uid, row=route.row)
            route = self.route = route.resolved(addresses, self._pod.context.rng)
        except Refused as error:
            self._refuse(error)
            return
        self._set_out(source, route)

    def not_resolved(self) -> None:
        """The look-up has not come to anything in time."""
        self.resolved(None)

    def _set_out(self, source: Workload, route: Route) -> None:
        pod = self._pod
        facts = outbound_facts(pod.served.pod.name, self, source, route)
        if route.protocol is Protocol.TCP:
            self.over = True
            log = pod.telemetry.opened(facts)
            pod.served.pass_through(self, self.near, Dial(_address(route), None, MARK), log)
            return
        if route.inner is None:
            self._log = pod.telemetry.opened(facts, self)
        else:
            self._facts = facts
        self._attempt(route)

    def workload_unknown(self) -> None:
        """The own workload has not appeared in time."""
        self._pod.forget_waiter(self)
        self._refuse(self._pod.unknown_workload())

    def judge(self) -> None:
        """Policies are about what comes in."""

    def cut(self, error: NodenetError | None = None) -> None:
        """Ends it now; the application sees a reset."""
        if self.over:
            return
        error = error or Draining()
        if self._tunnel is not None:
            self._tunnel.cut(error)
            return
        inner, self._inner = self._inner, None
        if inner is not None and inner.wire is not None:
            inner.wire.abort(error)
        stream, connection = self._stream, self._connection
        if stream is not None and connection is not None:
            connection.give_up(stream)
        self._fail(error)

    # -- pool.Opener -----------------------------------------------------------------------------

    def connected(self, connection: ClientConnection) -> None:
        """See `pool.Opener`."""
        if self.over:
            return
        route = self.route
        assert route is not None and self.source is not None
        self._connection = connection
        block = self._pod.fields.connect_block(self.source, route, self.client)
        self._stream = connection.open(self, block)
        self._pod.answers.add(self)

    def answered(self, response: Response) -> None:
        """See `pool.Opener`."""
        pod, connection, stream = self._pod, self._connection, self._stream
        assert connection is not None and stream is not None
        pod.answers.discard(self)
        if response.status != _OK:
            connection.give_up(stream)
            self._stream = self._connection = None
            error = HttpStatus(response.status)
            if response.status == _UNAVAILABLE:  # its application is not there; another's may be
                self._again_or_fail(error)
            else:
                self._fail(error)
            return
        transport = connection.transport
        assert transport is not None
        if self.route is not None and self.route.inner is not None:
            pod.answers.add(self)
            pod.client_certificate(self._begin_inner)
            return
        self._join(transport, stream)

    def not_connected(self, error: NodenetError) -> None:
        """See `pool.Opener`."""
        self._again_or_fail(error)

    def refused(self, error: NodenetError, retry: bool) -> None:
        """See `pool.Opener`."""
        self._pod.answers.discard(self)
        connection = self._connection
        self._stream = self._connection = None
        if retry:
            # one from the pool may have been dead for long: a new one tells
            stale = connection is not None and connection.opened > 1
            not_seen = isinstance(error, NotLookedAt)
            self._again_or_fail(
                error, same=not_seen or (stale and isinstance(error, TransportLost))
            )
        else:
            self._fail(error)

    def not_answered(self) -> None:
        """The peer has not answered the CONNECT in time."""
        connection, stream = self._connection, self._stream
        if connection is not None and stream is not None and self._tunnel is None:
            self.cut(ConnectFailed("io error: no answer to CONNECT in time"))

    # -- inner.InnerOpener -----------------------------------------------------------------------

    def inner_answered(self, response: Response) -> None:
        """See `inner.InnerOpener`."""
        inner = self._inner
        if self.over or inner is None:
            return
        self._pod.answers.discard(self)
        if response.status != _OK:
            self.inner_failed(HttpStatus(response.status))
            return
        assert inner.wire is not None and inner.stream is not None and self._facts is not None
        # now it is known who is behind the gateway
        facts = inner_facts(self._facts, inner.peer_identity, response)
        self._log, self._facts = self._pod.telemetry.opened(facts, self), None
        self._join(inner.wire, inner.stream)

    def inner_failed(self, error: NodenetError) -> None:
        """See `inner.InnerOpener`."""
        self.cut(error)

    # -- tunnel.TunnelOwner ----------------------------------------------------------------------

    def tunnel_ended(self, error: NodenetError | None) -> None:
        """See `tunnel.TunnelOwner`."""
        self._over(error)
        inner, connection = self._inner, self._connection
        if inner is not None and inner.wire is not None:
            if error is None:
                inner.close()
            else:
                inner.wire.abort(error)
        if connection is not None:
            connection.ended()

    # --------------------------------------------------------------------------------------------

    def _begin_inner(self, context: ssl.SSLContext | NodenetError) -> None:
        pod, connection, stream = self._pod, self._connection, self._stream
        route, source = self.route, self.source
        if self.over or connection is None or stream is None or route is None:
            return
        if isinstance(context, NodenetError):
            self.cut(context)
            return
        transport = connection.transport
        assert transport is not None and route.inner is not None and source is not None
        block = pod.fields.connect_block(source, route, self.client, inner=route.inner)
        self._inner = InnerClient(
            self,
            route.inner.identities,
            block,
            check=lambda tls: pod.check_peer(tls, OUTBOUND),
            live=pod.inner_wires,
        )
        self._inner.start(pod.wires, transport, stream, context, connection.ended)

    def _join(self, transport: Transport, stream: Stream) -> None:
        """Lets the bytes flow."""
        pod, near, connection = self._pod, self.near, self._connection
        if self._log is not None and connection is not None:
            self._log.hbone_conn, self._log.stream_id = connection.conn_id, stream.id
        self._tunnel = Tunnel(pod.wires, transport, stream, near, self)
        try:
            pod.wires.poller.add(near.fileno(), STREAM, self._tunnel)
        except OSError as error:  # fs.epoll.max_user_watches, memory
            self._tunnel.cut(ConnectFailed(f"io error: {os.strerror(error.errno or 0)}"))

    def _attempt(self, route: Route) -> None:
        self._attempts += 1
        source = self.source
        assert source is not None
        key = PoolKey(_address(route), route.identities, self.client.host, source.identity)
        self._pod.pool.checkout(key, self)

    def _again_or_fail(self, error: NodenetError, *, same: bool = False) -> None:
        """Tries another endpoint, else, if that is worth it, the ``same`` one."""
        if self.over:
            return
        failed, source = self.route, self.source
        assert failed is not None and source is not None
        if self._attempts < ATTEMPTS and not isinstance(error, Draining):
            for _ in range(_DRAWS):
                try:
                    route = self._pod.decide_outbound(source, self.client, self.original)
                except Refused:
                    break
                other = route.next_hop is not None and route.next_hop != failed.next_hop
                if other and route.protocol is failed.protocol:
                    self._goes_to(source, route)
                    self._attempt(route)
                    return
            if same:
                self._attempt(failed)
                return
        self._fail(error)

    def _goes_to(self, source: Workload, route: Route) -> None:
        """What is logged and counted is the endpoint that is tried last."""
        self.route = route
        facts = outbound_facts(self._pod.served.pod.name, self, source, route)
        if self._log is not None:
            self._pod.telemetry.retold(self._log, facts)
        else:
            self._facts = facts

    def _refuse(self, error: NodenetError) -> None:
        """Nothing was tried: a line in the log, no metrics (ztunnel: src/proxy/outbound.rs)."""
        self.over = True
        pod = self._pod
        pod.telemetry.failed(self.client, self.original, OUTBOUND, error.message)
        reset_on_close(self.near)
        self.near.close()
        pod.served.flow_ended(self)

    def _fail(self, error: NodenetError) -> None:
        if self.over:
            return
        reset_on_close(self.near)
        self.near.close()
        self._over(error)

    def _over(self, error: NodenetError | None) -> None:
        if self.over:
            return
        self.over = True
        if self._facts is not None:
            self._log = self._pod.telemetry.opened(self._facts)
        if self._log is not None:
            flag = ResponseFlag.of(error)
            self._log.closed(
                self.sent, self.received, None if error is None else error.message, flag
            )
        self._pod.served.flow_ended(self)


def _address(route: Route) -> Address:
    assert route.next_hop is not None, "unresolved routes are resolved first"
    return Address(str(route.next_hop.ip), route.next_hop.port)
