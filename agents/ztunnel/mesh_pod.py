"""One served pod as a member of the mesh: its workload, its certificate, its pool, its peers.

What the data path of a pod asks of the mesh goes through here: who am I, where does this go, may
this come in. The answers come from the state of this moment; connections that are open stay as
they were decided, except that a changed policy is asked again.
"""

from __future__ import annotations

import logging
import ssl
from _socket import socket as RawSocket
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from nodenet.abi import MARK
from nodenet.agents.ztunnel import socks5
from nodenet.agents.ztunnel.address import Address, ip_address
from nodenet.agents.ztunnel.admission import TUNNELLED_FILES
from nodenet.agents.ztunnel.decision import Route as Dial
from nodenet.agents.ztunnel.decision import to_the_application
from nodenet.agents.ztunnel.ends import Draining
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND
from nodenet.agents.ztunnel.inbound_peer import InboundPeer
from nodenet.agents.ztunnel.mesh_context import MeshContext, WorkloadWaiter
from nodenet.agents.ztunnel.outbound import OutboundFlow
from nodenet.agents.ztunnel.plain_inbound import PlainInbound
from nodenet.agents.ztunnel.pod import Pod
from nodenet.agents.ztunnel.pool import Pool
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.agents.ztunnel.transport import Transport
from nodenet.agents.ztunnel.tunnel_fields import TunnelFields
from nodenet.endpoint import IPAddress
from nodenet.errors import NodenetError
from nodenet.hbone.headers import Request
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.spiffe import Identity
from nodenet.mesh import inbound as inbound_rules
from nodenet.mesh import outbound as decision
from nodenet.mesh.inbound import InboundRoute
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.rbac import NoteKind, RbacContext, Verdict
from nodenet.mesh.refused import UnknownSourceWorkload
from nodenet.mesh.route import Route
from nodenet.mesh.state import Change

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.served import Flow as DialFlow
    from nodenet.agents.ztunnel.served import ServedPod

#: Identities kept as objects.
_IDENTITIES_KEPT: Final = 4096

#: Connections accepted on one pod's 15008, those in their handshake included: one for every hundred
#: tunnels of each pod that talks to it.
MAX_PEERS: Final = 8192
#: Those of them that have not said yet who they are. One more ends the one that has been silent for
#: longest, so that strangers cannot keep peers out by holding connections: a handshake takes a peer
#: milliseconds.
MAX_STRANGERS: Final = 1024
#: Clients of one pod's SOCKS5 listener that have not said yet what they want.
MAX_SOCKS_REQUESTS: Final = 1024
_NOTE_LEVELS: Final = {
    NoteKind.UNKNOWN_POLICY: logging.WARNING,
    NoteKind.DRY_RUN: logging.INFO,
    NoteKind.DECISION: logging.DEBUG,
}

logger = logging.getLogger(__name__)


class TooManyStrangers(NodenetError):
    """A handshake was given up for another one."""

    def __init__(self) -> None:
        super().__init__(f"{MAX_STRANGERS} handshakes at the same time")


class MeshPod:
    """One pod. Made with its listeners, gone with its last connection."""

    def __init__(self, served: ServedPod, context: MeshContext) -> None:
        self.served = served
        self.context = context
        self.wires = context.wires
        self.telemetry = context.telemetry
        self.answers = context.answers
        self.pool = Pool(
            context.wires, context.pool_timers, self, max_streams=context.mesh.max_streams
        )
        self.peers: set[InboundPeer] = set()
        """Connections accepted on 15008."""
        self._strangers: dict[InboundPeer, None] = {}
        """Those of them in their handshake, the oldest first."""
        self.inner_wires: set[Transport] = set()
        """Those within tunnels, to other networks."""
        self._workload: Workload | None = None
        self._workload_version = -1
        self._workload_pod = served.pod
        self._waiting: dict[WorkloadWaiter, None] = {}
        self.fields = TunnelFields(context.rng, response_baggage=context.mesh.response_baggage)
        self._socks: set[socks5.Client] = set()
        self._proxy_ports = (
            decision.PROXY_PORTS | {socks5.PORT} if context.mesh.socks5 else decision.PROXY_PORTS
        )
        self._unsubscribe = context.state.subscribe(self._changed)
        if context.mesh.revocation is not None:
            context.mesh.revocation.watch(self)

    # -- who am I --------------------------------------------------------------------------------

    def workload(self) -> Workload | None:
        """The pod's own workload: by uid, by namespace and name, or by address; None: unknown."""
        state, pod = self.context.state, self.served.pod
        if self._workload_version != state.version or self._workload_pod is not pod:
            self._workload_version, self._workload_pod = state.version, pod
            self._workload = self._find_workload(pod)
        return self._workload

    def _find_workload(self, pod: Pod) -> Workload | None:
        state = self.context.state
        if pod.uid is not None and (found := state.workload(pod.uid)) is not None:
            return found
        for host in sorted(pod.hosts):
            found = state.workload_at(self.context.network, ip_address(host))
            if found is not None:
                return found
        return None

    def await_workload(self, waiter: WorkloadWaiter) -> None:
        """Has it begin again when the workload is known."""
        if waiter not in self._waiting:
            self._waiting[waiter] = None
            self.context.workload_waits.add(waiter)

    def unknown_workload(self) -> NodenetError:
        """The error of a connection whose pod is not in the state."""
        namespace, _, name = self.served.pod.name.rpartition("/")
        return UnknownSourceWorkload(namespace=namespace, name=name, service_account="unknown")

    def forget_waiter(self, waiter: WorkloadWaiter) -> None:
        """It does not wait any more."""
        self._waiting.pop(waiter, None)
        self.context.workload_waits.discard(waiter)

    def certificate(self) -> WorkloadCertificate | None:
        """The certificate of this moment; None while the workload or the certificate is unknown."""
        workload = self.workload()
        if workload is None:
            return None
        return self.context.mesh.certificates.get(identity_of(workload))

    # -- outbound --------------------------------------------------------------------------------

    def outbound(self, near: RawSocket, client: Address, original: Address) -> OutboundFlow:
        """A connection accepted on 15001; `OutboundFlow.begin` is to be called."""
        return OutboundFlow(self, near, client, original)

    def decide_outbound(self, source: Workload, client: Address, original: Address) -> Route:
        """Where it goes; Refused."""
        context = self.context
        return decision.decide(
            context.state,
            source,
            ip_address(client.host),
            Endpoint(ip_address(original.host), original.port),
            network=context.network,
            rng=context.rng,
            proxy_ports=self._proxy_ports,
        )

    def resolve(self, flow: OutboundFlow, hostname: str) -> None:
        """Has the flow told the addresses of a hostname, or that there are none in time."""
        self.context.lookups.add(flow)
        self.context.resolver.resolve(hostname, flow.resolved)

    def lookup_over(self, flow: OutboundFlow) -> None:
        """It has been told."""
        self.context.lookups.discard(flow)

    def socks(self, near: RawSocket, client: Address) -> None:
        """A connection accepted on 15080."""
        context = self.context
        if len(self._socks) >= MAX_SOCKS_REQUESTS:
            reset_on_close(near)
            near.close()
            return
        asking = socks5.Client(
            context.wires.poller,
            near,
            client,
            self.served.begin_outbound,
            self.addresses_of,
            self._socks_over,
        )
        self._socks.add(asking)
        context.socks_requests.add(asking)
        try:
            asking.start()
        except OSError:  # fs.epoll.max_user_watches, memory
            asking.done = True
            self._socks_over(asking, None)
            near.close()

    def addresses_of(self, name: str, done: Callable[[Sequence[IPAddress] | None], None]) -> None:
        """Calls back with the addresses a client of this pod means by a hostname."""
        context, workload = self.context, self.workload()
        service = context.state.service_named(name, workload.namespace if workload else None)
        vips = () if service is None else service.vips
        here = [vip.ip for vip in vips if vip.network == context.network]
        if here:
            done(here)
        else:
            context.resolver.resolve(name, done)

    def _socks_over(self, asking: socks5.Client, why: str | None) -> None:
        self._socks.discard(asking)
        self.context.socks_requests.discard(asking)
        if why is not None:
            logger.debug("%s: SOCKS5 client: %s", self.served.pod.name, why)

    # -- pool.Connector --------------------------------------------------------------------------

    def dial_hbone(self, destination: Address) -> tuple[RawSocket, DialFlow]:
        """See `pool.Connector`."""
        return self.served.dial(Dial(destination, None, MARK), (None, 0, destination))

    def handshake_failed(self, error: NodenetError) -> None:
        """See `pool.Connector`."""
        self.telemetry.handshake_failed(OUTBOUND, error)

    def dial_over(self, flow: DialFlow) -> None:
        """See `pool.Connector`."""
        self.served.dial_over(flow)

    def client_certificate(self, use: Callable[[ssl.SSLContext | NodenetError], None]) -> None:
        """See `pool.Connector`."""
        self._with_certificate(self.context.mesh.tls.client, use)

    # -- inbound ---------------------------------------------------------------------------------

    def server_certificate(self, use: Callable[[ssl.SSLContext | NodenetError], None]) -> None:
        """Calls back with the TLS settings for an accepted connection."""
        self._with_certificate(self.context.mesh.tls.server, use)

    def inbound_hbone(self, near: RawSocket, client: Address, local: Address) -> None:
        """A connection accepted on 15008."""
        if len(self.peers) >= MAX_PEERS:
            error = f"{MAX_PEERS} connections from other proxies"
            self.telemetry.failed(client, local, INBOUND, error)
            reset_on_close(near)
            near.close()
            return
        if len(self._strangers) >= MAX_STRANGERS:
            next(iter(self._strangers)).cut(TooManyStrangers())
        accepted = InboundPeer(self, near, client, local)
        self.peers.add(accepted)
        self._strangers[accepted] = None
        self.context.strangers.add(accepted)
        # they count against the descriptors, whether they ever say who they are or not
        self.served.data_path.admission.opened(TUNNELLED_FILES)
        accepted.begin()

    def inbound_plain(self, near: RawSocket, client: Address, route: Dial) -> bool:
        """A connection accepted on 15006; False when there was no descriptor for its dial."""
        return PlainInbound(self, near, client, route).begin()

    def decide_inbound(self, workload: Workload, request: Request, local: Address) -> InboundRoute:
        """Where a CONNECT goes; InboundRefused."""
        authority = inbound_rules.read_request(request.method, request.authority)
        return inbound_rules.decide(
            self.context.state,
            workload,
            ip_address(local.host),
            authority,
            network=self.context.network,
            proxy_ports=self._proxy_ports,
        )

    def admits(self, workload: Workload, context: RbacContext) -> Verdict:
        """Whether the policies of this moment let a connection in."""
        verdict = self.context.policies.of(workload).evaluate(context)
        for note in verdict.notes:
            level = _NOTE_LEVELS[note.kind]
            if logger.isEnabledFor(level):
                logger.log(level, "%s: policy=%s %s", self.served.pod.name, note.policy, note.text)
        return verdict

    def dial_application(self, client: Address, route: InboundRoute) -> tuple[RawSocket, DialFlow]:
        """A socket on its way to the pod's application. OSError."""
        upstream = Address(str(route.dial.ip), route.dial.port)
        if route.source is not None:
            dial = Dial(upstream, str(route.source), MARK)
        else:
            dial = to_the_application(upstream, self.served.pod, client)
        return self.served.dial(dial, (client.host, client.port, upstream))

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """No new tunnels; those that are open go on, and then their connections end."""
        for asking in list(self._socks):
            asking.cut()
        for waiter in list(self._waiting):
            waiter.workload_unknown()
        self.pool.leave(self._left_pool)
        for each in list(self.peers):
            each.shutdown()

    def cut(self) -> None:
        """Ends every connection of it at once."""
        self.pool.cut()
        for each in list(self.peers):
            each.cut(Draining())

    def close(self) -> None:
        """Hears no more of changes."""
        self._unsubscribe()
        if self.context.mesh.revocation is not None:
            self.context.mesh.revocation.forget(self)

    def check_peer(self, connection: ssl.SSLObject, direction: str) -> None:
        """CertificateRevoked when the peer of a new connection must not be talked to."""
        if self.context.mesh.revocation is not None:
            self.context.mesh.revocation.check(connection, direction)

    def transports(self) -> Iterator[tuple[str, Transport]]:
        """See `revocation.LivePeers`."""
        for connection in self.pool.connections:
            if connection.transport is not None and connection.transport.core is not None:
                yield OUTBOUND, connection.transport
        for wire in self.inner_wires:
            if wire.core is not None:
                yield OUTBOUND, wire
        for each in self.peers:
            if each.transport is not None and each.transport.core is not None:
                yield INBOUND, each.transport

    @property
    def empty(self) -> bool:
        """Whether no connection to or from another proxy is left."""
        return not (self.peers or self.pool.connections)

    def peer_known(self, peer: InboundPeer) -> None:
        """A connection on 15008 has said who it is (told by itself)."""
        self._strangers.pop(peer, None)
        self.context.strangers.discard(peer)

    def peer_ended(self, ended: InboundPeer) -> None:
        """A connection on 15008 is over (told by itself)."""
        self._strangers.pop(ended, None)
        self.context.strangers.discard(ended)
        if ended in self.peers:
            self.peers.discard(ended)
            self.served.data_path.admission.closed(TUNNELLED_FILES)
            self.served.mesh_changed()

    def _left_pool(self) -> None:
        self.served.mesh_changed()

    # -- changes ---------------------------------------------------------------------------------

    def pod_changed(self) -> None:
        """More is known of the pod, perhaps who it is."""
        if self._waiting and self.workload() is not None:
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                self.context.workload_waits.discard(waiter)
                waiter.begin()

    def _changed(self, change: Change) -> None:
        self.pod_changed()
        if change.policies:
            self.served.judge_again()

    def _with_certificate(
        self,
        make: Callable[[WorkloadCertificate], ssl.SSLContext],
        use: Callable[[ssl.SSLContext | NodenetError], None],
    ) -> None:
        workload = self.workload()
        if workload is None:
            use(self.unknown_workload())
            return

        def have(certificate: WorkloadCertificate | NodenetError) -> None:
            if isinstance(certificate, NodenetError):
                use(certificate)
                return
            try:
                context = make(certificate)
            except NodenetError as error:
                use(error)
                return
            use(context)

        try:
            identity = identity_of(workload)
        except NodenetError as error:
            use(error)
            return
        certificate = self.context.mesh.certificates.get(identity)
        if certificate is not None:
            have(certificate)
        else:
            self.context.mesh.certificates.fetch(identity, have)


@lru_cache(_IDENTITIES_KEPT)
def _identity(trust_domain: str, namespace: str, service_account: str) -> Identity:
    return Identity(trust_domain, namespace, service_account)


def identity_of(workload: Workload) -> Identity:
    """Who a workload is; InvalidIdentity when its names make no SPIFFE id."""
    return _identity(workload.trust_domain, workload.namespace, workload.service_account)
