"""One served pod as a member of the mesh: its workload, its certificate, its pool, its peers.

What the data path of a pod asks of the mesh goes through here: who am I, where does this go, may
this come in. The answers come from the state of this moment; connections that are open stay as
they were decided, except that a changed policy is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from _socket import socket as RawSocket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from nodenet.abi import MARK, Direction
from nodenet.agents.ztunnel import socks5
from nodenet.agents.ztunnel.address import Address, ip_address
from nodenet.agents.ztunnel.connection import socket_cookie
from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.decision import Route as Dial
from nodenet.agents.ztunnel.decision import to_the_application
from nodenet.agents.ztunnel.ends import Draining, PolicyChanged, PolicyRejection
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND, FlowFacts, Security
from nodenet.agents.ztunnel.inbound import InboundFlow, InboundPeer
from nodenet.agents.ztunnel.outbound import OutboundFlow
from nodenet.agents.ztunnel.pod import Pod
from nodenet.agents.ztunnel.poller import Poller
from nodenet.agents.ztunnel.pool import IDLE_SECONDS, MAX_STREAMS, Pool, PoolTimers
from nodenet.agents.ztunnel.relay import reset_on_close
from nodenet.agents.ztunnel.resolver import WAIT_SECONDS, Resolver
from nodenet.agents.ztunnel.revocation import Revocation
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.agents.ztunnel.transport import Transport, Wires
from nodenet.endpoint import IPAddress
from nodenet.errors import NodenetError
from nodenet.hbone import hpack_codec
from nodenet.hbone.baggage import Baggage, format_baggage, parse_baggage
from nodenet.hbone.forwarded import format_forwarded, parse_forwarded_host
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.hpack_codec import HeaderBlock
from nodenet.hbone.traceparent import new_traceparent
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.spiffe import Identity
from nodenet.identity.store import CertificateStore
from nodenet.identity.tls import TlsContexts
from nodenet.mesh import inbound as inbound_rules
from nodenet.mesh import outbound as decision
from nodenet.mesh.inbound import InboundRoute
from nodenet.mesh.model import Endpoint, Workload
from nodenet.mesh.policy_sets import PolicySets
from nodenet.mesh.rbac import NoteKind, RbacContext, Verdict
from nodenet.mesh.refused import UnknownSourceWorkload
from nodenet.mesh.route import InnerTunnel, Route
from nodenet.mesh.state import Change, MeshState

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.served import Flow as DialFlow
    from nodenet.agents.ztunnel.served import ServedPod

#: Seconds a connection waits for the pod's own workload to appear in the state
#: (ztunnel: src/state.rs, wait_for_workload).
WORKLOAD_SECONDS: Final = 5.0
#: Seconds a peer has to answer a CONNECT: its connect to the application takes up to 10.
ANSWER_SECONDS: Final = 15.0
#: Identities kept as objects.
_IDENTITIES_KEPT: Final = 4096

#: Clients of one pod's SOCKS5 listener that have not said yet what they want.
MAX_SOCKS_REQUESTS: Final = 1024
_PORTS_WITH_SOCKS: Final = decision.PROXY_PORTS | {socks5.PORT}
_NOTE_LEVELS: Final = {
    NoteKind.UNKNOWN_POLICY: logging.WARNING,
    NoteKind.DRY_RUN: logging.INFO,
    NoteKind.DECISION: logging.DEBUG,
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What a worker needs to be part of a mesh."""

    state: MeshState
    certificates: CertificateStore
    tls: TlsContexts
    revocation: Revocation | None = None
    network: str = ""
    response_baggage: bool = True
    max_streams: int = MAX_STREAMS
    """Streams of one connection to a peer."""
    socks5: bool = False
    """Applications may ask for connections on 127.0.0.1:15080."""
    idle_seconds: float = IDLE_SECONDS
    """After which a connection without streams is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshContext:
    """What the pods of one worker share of the mesh. Belongs to the worker's thread."""

    mesh: Mesh
    wires: Wires
    rng: random.Random
    telemetry: Telemetry
    policies: PolicySets
    pool_timers: PoolTimers
    answers: Deadlines[OutboundFlow]
    inbound_dials: Deadlines[InboundFlow]
    resolver: Resolver
    lookups: Deadlines[OutboundFlow]
    socks_requests: Deadlines[socks5.Client]
    workload_waits: Deadlines[WorkloadWaiter]

    @classmethod
    def made(
        cls,
        mesh: Mesh,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        *,
        telemetry: Telemetry,
        rng: random.Random,
        connect_seconds: float,
    ) -> MeshContext:
        """The shared things of one worker."""
        wires = Wires(loop, poller)
        return cls(
            mesh=mesh,
            wires=wires,
            rng=rng,
            telemetry=telemetry,
            policies=PolicySets(mesh.state),
            pool_timers=PoolTimers(wires, connect_seconds, mesh.idle_seconds),
            answers=Deadlines(loop, ANSWER_SECONDS, OutboundFlow.not_answered),
            inbound_dials=Deadlines(loop, connect_seconds, InboundFlow.dial_expired),
            resolver=Resolver(loop),
            lookups=Deadlines(loop, WAIT_SECONDS, OutboundFlow.not_resolved),
            socks_requests=Deadlines(loop, socks5.REQUEST_SECONDS, socks5.Client.expire),
            workload_waits=Deadlines(loop, WORKLOAD_SECONDS, _workload_unknown),
        )

    def close(self) -> None:
        """Forgets all timers. No pod may be left."""
        self.wires.close()
        self.pool_timers.close()
        self.resolver.close()
        for deadlines in (
            self.answers,
            self.inbound_dials,
            self.lookups,
            self.socks_requests,
            self.workload_waits,
        ):
            deadlines.close()

    @property
    def state(self) -> MeshState:
        """What is known of the mesh."""
        return self.mesh.state

    @property
    def network(self) -> str:
        """This cluster's network."""
        return self.mesh.network


class WorkloadWaiter(Protocol):
    """Cannot go on before the pod's own workload is known."""

    def begin(self) -> object:
        """Tries again."""

    def workload_unknown(self) -> None:
        """It has not appeared in time."""


def _workload_unknown(waiter: WorkloadWaiter) -> None:
    waiter.workload_unknown()


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
        self._workload: Workload | None = None
        self._workload_version = -1
        self._waiting: dict[WorkloadWaiter, None] = {}
        self._baggage: tuple[Workload | None, HeaderBlock] = (None, HeaderBlock(b""))
        self._socks: set[socks5.Client] = set()
        self._unsubscribe = context.state.subscribe(self._changed)
        if context.mesh.revocation is not None:
            context.mesh.revocation.watch(self)

    # -- who am I --------------------------------------------------------------------------------

    def workload(self) -> Workload | None:
        """The pod's own workload: by uid, by namespace and name, or by address; None: unknown."""
        state = self.context.state
        if self._workload_version != state.version:
            self._workload_version = state.version
            self._workload = self._find_workload(self.served.pod)
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
            proxy_ports=_PORTS_WITH_SOCKS if context.mesh.socks5 else decision.PROXY_PORTS,
        )

    def resolve(self, flow: OutboundFlow, hostname: str) -> None:
        """Has the flow told the addresses of a hostname, or that there are none in time."""
        self.context.lookups.add(flow)
        self.context.resolver.resolve(hostname, flow.resolved)

    def lookup_over(self, flow: OutboundFlow) -> None:
        """It has been told."""
        self.context.lookups.discard(flow)

    def connect_block(
        self, source: Workload, route: Route, client: Address, inner: InnerTunnel | None = None
    ) -> HeaderBlock:
        """The CONNECT request of a connection, or of the tunnel within its tunnel."""
        service = route.service
        host = None if service is None else service.hostname
        rest = b"".join(
            (
                self._baggage_field(source),
                hpack_codec.field(b"forwarded", format_forwarded(str(client), host)),
                hpack_codec.field(b"traceparent", new_traceparent(self.context.rng).header()),
                b""
                if inner is None
                else hpack_codec.field(b"x-forwarded-network", inner.network.encode()),
            )
        )
        return hpack_codec.connect(route.authority.encode(), rest)

    def outbound_facts(self, flow: OutboundFlow, source: Workload, route: Route) -> FlowFacts:
        """What is known of an outbound connection when its way is."""
        assert route.next_hop is not None
        tunnelled = bool(route.authority)
        destination = route.workload
        return FlowFacts(
            direction=OUTBOUND,
            conn_id=socket_cookie(flow.near),
            pod=self.served.pod.name,
            src=flow.client,
            dst=Address(str(route.next_hop.ip), route.next_hop.port),
            original_dst=flow.original,
            hbone_addr=route.authority or None,
            protocol=route.protocol.value,
            security=Security.MTLS if tunnelled else Security.PLAIN,
            src_workload=source,
            src_identity=source.identity if tunnelled else None,
            dst_workload=destination,
            dst_identity=destination.identity if destination is not None else None,
            service=route.service,
            row=route.row,
        )

    def inner_facts(self, facts: FlowFacts, identity: str, response: Response) -> FlowFacts:
        """What the proxy behind a gateway has told, in place of what is known of the gateway."""
        return msgspec.structs.replace(
            facts,
            dst_workload=None,
            dst_baggage=_baggage_of(tuple(response.get_all(b"baggage"))),
            dst_identity=identity,
        )

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
        accepted = InboundPeer(self, near, client, local)
        self.peers.add(accepted)
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
        )

    def inbound_facts(
        self, flow: InboundFlow, workload: Workload, route: InboundRoute, request: Request
    ) -> FlowFacts:
        """What is known of a tunnel when its way is."""
        context, peer = self.context, flow.peer
        network_field = request.get(b"x-forwarded-network")
        source = inbound_rules.source_for_labels(
            context.state,
            ip_address(peer.client.host),
            network=context.network,
            forwarded_network=None if network_field is None else network_field.decode("latin-1"),
        )
        said = request.get_all(b"baggage") if context.mesh.response_baggage else ()
        service = inbound_rules.service_for_labels(
            route, workload, parse_forwarded_host(request.get(b"forwarded"))
        )
        return FlowFacts(
            direction=INBOUND,
            conn_id=peer.conn_id,
            pod=self.served.pod.name,
            src=peer.client,
            dst=peer.local,
            original_dst=Address(str(route.destination.ip), route.destination.port),
            hbone_addr=request.authority,
            protocol="HBONE",
            security=Security.MTLS,
            src_workload=source,
            src_baggage=_baggage_of(tuple(said)) if said else None,
            src_identity=peer.identity_text,
            dst_workload=workload,
            dst_identity=workload.identity,
            service=service,
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

    def response_block(self, workload: Workload) -> HeaderBlock:
        """The fields of a 200."""
        if not self.context.mesh.response_baggage:
            return HeaderBlock(b"")
        return self._baggage_field(workload)

    def _baggage_field(self, workload: Workload) -> HeaderBlock:
        known, field = self._baggage
        if known is not workload:
            value = format_baggage(_own_baggage(workload), workload.workload_type)
            field = hpack_codec.field(b"baggage", value) if value else HeaderBlock(b"")
            self._baggage = (workload, field)
        return field

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
        for each in self.peers:
            if each.transport is not None and each.transport.core is not None:
                yield INBOUND, each.transport

    @property
    def empty(self) -> bool:
        """Whether no connection to or from another proxy is left."""
        return not (self.peers or self.pool.connections)

    def peer_ended(self, ended: InboundPeer) -> None:
        """A connection on 15008 is over (told by itself)."""
        self.peers.discard(ended)
        self.served.mesh_changed()

    def _left_pool(self) -> None:
        self.served.mesh_changed()

    # -- changes ---------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if self._waiting and self.workload() is not None:
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                self.context.workload_waits.discard(waiter)
                waiter.begin()
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


class PlainInbound:
    """A connection accepted on 15006 that waits for the pod's workload or a verdict."""

    __slots__ = ("_client", "_context", "_near", "_pod", "_route", "_workload")

    def __init__(self, pod: MeshPod, near: RawSocket, client: Address, route: Dial) -> None:
        self._pod = pod
        self._near = near
        self._client = client
        self._route = route
        self._workload: Workload | None = None
        destination = route.destination
        self._context = RbacContext(
            ip_address(client.host), None, Endpoint(ip_address(destination.host), destination.port)
        )

    def begin(self) -> bool:
        """Lets it in or not; False when there was no descriptor for its dial."""
        pod = self._pod
        workload = self._workload = pod.workload()
        if workload is None:
            pod.await_workload(self)
            return True
        verdict = pod.admits(workload, self._context)
        pod.telemetry.judged(verdict.policy, verdict.allowed)
        log = pod.telemetry.opened(self._facts(workload, verdict))
        if not verdict.allowed:
            error = PolicyRejection(verdict.text or "")
            log.closed(0, 0, error.message, error.response_flag)
            reset_on_close(self._near)
            self._near.close()
            return True
        return pod.served.carry(
            self._near, self._client, Direction.IN, self._route, log, judged=self
        )

    def workload_unknown(self) -> None:
        """See `WorkloadWaiter`."""
        pod = self._pod
        pod.forget_waiter(self)
        error = pod.unknown_workload()
        pod.telemetry.failed(self._client, self._route.destination, INBOUND, error.message)
        reset_on_close(self._near)
        self._near.close()

    def rejection(self) -> NodenetError | None:
        """See `connection.Judged`."""
        workload = self._workload
        assert workload is not None
        return None if self._pod.admits(workload, self._context).allowed else PolicyChanged()

    def _facts(self, workload: Workload, verdict: Verdict) -> FlowFacts:
        pod = self._pod
        destination = self._route.destination
        return FlowFacts(
            direction=INBOUND,
            conn_id=socket_cookie(self._near),
            pod=pod.served.pod.name,
            src=self._client,
            dst=destination,
            original_dst=destination,
            src_workload=pod.context.state.workload_at(
                pod.context.network, ip_address(self._client.host)
            ),
            dst_workload=workload,
            dst_identity=workload.identity,
            policy=verdict.policy,
        )


@lru_cache(_IDENTITIES_KEPT)
def _identity(trust_domain: str, namespace: str, service_account: str) -> Identity:
    return Identity(trust_domain, namespace, service_account)


def identity_of(workload: Workload) -> Identity:
    """Who a workload is; InvalidIdentity when its names make no SPIFFE id."""
    return _identity(workload.trust_domain, workload.namespace, workload.service_account)


def _own_baggage(workload: Workload) -> Baggage:
    """What we say of a workload."""
    return Baggage(
        cluster=workload.cluster_id,
        namespace=workload.namespace,
        workload_name=workload.workload_name,
        service_name=workload.canonical_name,
        revision=workload.canonical_revision,
        region=workload.locality.region,
        zone=workload.locality.zone,
    )


#: Clients of one node's pods say the same in each of their connections.
_baggage_of: Final = lru_cache(4096)(parse_baggage)
