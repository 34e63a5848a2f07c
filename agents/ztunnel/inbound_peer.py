"""A connection of another proxy, accepted on 15008: its handshake, then its tunnels."""

from __future__ import annotations

import os
import ssl
from _socket import socket as RawSocket
from typing import TYPE_CHECKING, Final

from nodenet.agents.ztunnel.address import Address, ip_address
from nodenet.agents.ztunnel.connection import socket_cookie
from nodenet.agents.ztunnel.ends import Draining
from nodenet.agents.ztunnel.flow_facts import INBOUND
from nodenet.agents.ztunnel.inbound import InboundFlow, UpstreamFailed
from nodenet.agents.ztunnel.poller import STREAM
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.agents.ztunnel.transport import H2Failed, Transport
from nodenet.errors import NodenetError
from nodenet.hbone.connection import Connection
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.outgoing import SHUTDOWN_PING
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from nodenet.identity import peer
from nodenet.identity.errors import CertificateUnavailable

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.mesh_pod import MeshPod

_SERVER: Final = LocalSettings()


class InboundPeer:
    """A connection accepted on 15008: shaking hands, then carrying tunnels.

    It owns the transport and handles what its core reports.
    """

    __slots__ = (
        "_awaits_pong",
        "_core",
        "_flows",
        "_sock",
        "client",
        "client_ip",
        "conn_id",
        "identity_text",
        "local",
        "pod",
        "transport",
    )

    def __init__(self, pod: MeshPod, sock: RawSocket, client: Address, local: Address) -> None:
        self.pod = pod
        self.client = client
        """Address of the TCP peer: the pod behind it, since its proxy dials from inside."""
        self.local = local
        """The pod's address it came to."""
        self.client_ip = ip_address(client.host)
        self.conn_id = socket_cookie(sock)
        """The kernel's id of the accepted socket, hex."""
        self.identity_text: str | None = None
        """The peer's SPIFFE id, when the handshake is done."""
        self.transport: Transport | None = None
        self._core: Connection | None = None
        self._sock: RawSocket | None = sock
        self._flows: set[InboundFlow] = set()
        self._awaits_pong = False
        """It is told not to open tunnels, and may not have read it yet (RFC 9113 section 6.8)."""

    @property
    def flows(self) -> frozenset[InboundFlow]:
        """Its tunnels."""
        return frozenset(self._flows)

    def begin(self) -> None:
        """Goes on as far as it can; called again when the pod's workload has become known."""
        pod = self.pod
        if pod.workload() is None:
            pod.await_workload(self)
            return
        pod.server_certificate(self._certified)

    def stay_strange(self) -> None:
        """Who it is has not come out in time."""
        self.cut(CertificateUnavailable("server", "none in time"))

    def workload_unknown(self) -> None:
        """The pod's own workload has not appeared in time."""
        self.pod.forget_waiter(self)
        self._refuse(self.pod.unknown_workload())

    def shutdown(self) -> None:
        """No new tunnels; ends when the last one has ended."""
        core, transport = self._core, self.transport
        if core is None or transport is None:
            self.cut(Draining())
            return
        if not core.going_away:
            self._awaits_pong = True
            self.pod.wires.drains.add(self)
        core.shutdown()
        transport.flush_soon()
        self._close_if_done()

    def expire(self) -> None:
        """See `transport.Draining`: the peer does not say whether it has read the GOAWAY."""
        self._awaits_pong = False
        self._close_if_done()

    def cut(self, error: NodenetError) -> None:
        """Ends it now, with every tunnel."""
        if self.transport is not None:
            self.transport.abort(error)
        else:
            self._refuse(error)

    def flow_ended(self, flow: InboundFlow) -> None:
        """One of its tunnels is over (told by itself)."""
        self._flows.discard(flow)
        if not self._flows and self._core is not None:
            self.pod.context.peer_idle.discard(self)
            self.pod.context.peer_idle.add(self)
        self._close_if_done()

    # -- transport.Owner -------------------------------------------------------------------------

    def secured(self, transport: Transport) -> Connection:
        """See `transport.Owner`."""
        workload = self.pod.workload()
        trust_domain = workload.trust_domain if workload is not None else ""
        self.identity_text = str(peer.check_client(transport.tls, trust_domain))
        self.pod.check_peer(transport.tls, INBOUND)
        return Connection(Role.SERVER, _SERVER, self)

    def ready(self, transport: Transport) -> None:
        """See `transport.Owner`."""
        self._core = transport.core
        self.pod.peer_known(self)
        self.pod.context.peer_idle.add(self)

    def lost(self, transport: Transport, error: NodenetError) -> None:
        """See `transport.Owner`."""
        self.pod.context.peer_idle.discard(self)
        self.pod.wires.drains.discard(self)
        core, self._core = self._core, None
        if core is None or isinstance(error, H2Failed):
            # its tunnels have lines of their own, but there may be none
            self.pod.telemetry.failed(self.client, self.local, INBOUND, error.message)
        if core is None or not core.greeted:
            self.pod.telemetry.handshake_failed(INBOUND, error)
        if core is not None:
            core.lost()
        self.pod.peer_ended(self)

    # -- hbone.Handler ---------------------------------------------------------------------------

    def on_request(self, stream: Stream, request: Request) -> None:
        """See `hbone.connection.Handler`."""
        self.pod.context.peer_idle.discard(self)
        flow = InboundFlow(self, stream)
        stream.receiver = flow
        self._flows.add(flow)
        flow.begin(request)

    def on_response(self, stream: Stream, response: Response) -> None:
        """See `hbone.connection.Handler`: servers get none."""

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        """See `hbone.connection.Handler`: the peer opens no more."""
        self._close_if_done()

    def on_writable(self) -> None:
        """See `hbone.connection.Handler`."""
        if self.transport is not None:
            self.transport.resume_waiting()

    def on_pong(self, opaque: bytes) -> None:
        """See `hbone.connection.Handler`: being read is what counts, but for a GOAWAY."""
        if opaque == SHUTDOWN_PING:
            self.pod.wires.drains.discard(self)
            self._awaits_pong = False
            self._close_if_done()

    # --------------------------------------------------------------------------------------------

    def _certified(self, context: ssl.SSLContext | NodenetError) -> None:
        sock = self._sock
        if sock is None:
            return
        if isinstance(context, NodenetError):
            self._refuse(context)
            return
        wires = self.pod.wires
        self._sock = None
        transport = self.transport = Transport(wires, sock, context, self, server=True)
        try:
            wires.poller.add(sock.fileno(), STREAM, transport)
        except OSError as error:  # fs.epoll.max_user_watches, memory
            transport.abort(UpstreamFailed(f"io error: {os.strerror(error.errno or 0)}"))
            return
        transport.start()

    def _refuse(self, error: NodenetError) -> None:
        """Ends one that has no transport yet."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        reset_on_close(sock)
        sock.close()
        self.pod.telemetry.failed(self.client, self.local, INBOUND, error.message)
        self.pod.peer_ended(self)

    def _close_if_done(self) -> None:
        core, transport = self._core, self.transport
        if core is None or transport is None or core.closed:
            return
        if core.going_away and not (core.active or self._awaits_pong):
            transport.close()
