"""One pod's share of the data path: its listeners, its live connections, its counters."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from _socket import socket as RawSocket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from nodenet.abi import HBONE_PORT, INBOUND_PORT, OUTBOUND_PORT, Direction
from nodenet.agents.ztunnel import connector, socks5
from nodenet.agents.ztunnel.address import Address, from_sockaddr, original_destination
from nodenet.agents.ztunnel.admission import Admission
from nodenet.agents.ztunnel.connection import (
    DIAL_FAILED,
    Connection,
    Judged,
    errno_name,
    socket_cookie,
)
from nodenet.agents.ztunnel.counters import PodCounters, PodSnapshot
from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.decision import OWN_PORTS, Reason, Route, decide
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND, FlowFacts, ResponseFlag
from nodenet.agents.ztunnel.listeners import Listener, OnAccept, open_listener
from nodenet.agents.ztunnel.logs import LineBudget
from nodenet.agents.ztunnel.mesh_context import MeshContext
from nodenet.agents.ztunnel.mesh_pod import MeshPod
from nodenet.agents.ztunnel.outbound import OutboundFlow
from nodenet.agents.ztunnel.pod import Pod
from nodenet.agents.ztunnel.poller import STREAM, Poller
from nodenet.agents.ztunnel.relay import Relay, reset_on_close
from nodenet.agents.ztunnel.source_ports import SourcePorts, reserved_ports
from nodenet.agents.ztunnel.telemetry import OpenFlow, Telemetry
from nodenet.agents.ztunnel.whereabouts import Whereabouts
from nodenet.kernel.netns import NetNs

#: The ports of a pod for redirected connections, and what arrives there.
PORTS: Final = ((OUTBOUND_PORT, Direction.OUT), (INBOUND_PORT, Direction.IN))
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})

#: A dial whose own socket arrives as a captured connection is dialled again at most so often.
#: More than once, because it cannot be told for certain: an application's connection may have the
#: same port and destination as a dial. So often in a row that never happens by chance.
MAX_HOPS: Final = 16

#: Host and port a connection comes from (host None: the pod's own) and where it goes.
Flow = tuple[str | None, int, Address]


class LiveFlow(Protocol):
    """A connection of the pod, however it is carried."""

    @property
    def files(self) -> int:
        """Descriptors it needs."""

    @property
    def sent(self) -> int:
        """Payload bytes the pod has sent."""

    @property
    def received(self) -> int:
        """Payload bytes the pod has received."""

    def cut(self) -> None:
        """Ends it now; both sides see a reset."""

    def judge(self) -> None:
        """Ends it if the policies of this moment would not let it in."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPath:
    """What all pods of one worker share. Belongs to the worker's thread."""

    loop: asyncio.AbstractEventLoop
    poller: Poller
    relay: Relay
    dials: Deadlines[Connection]
    whereabouts: Whereabouts
    rng: random.Random
    admission: Admission
    lines: LineBudget
    max_connections: int
    """Live connections of one pod at most."""
    telemetry: Telemetry
    mesh: MeshContext | None = None
    """None: plaintext passthrough, every connection goes where it wanted to."""


class ServedPod:
    """A pod being served, from its listeners to its last connection."""

    def __init__(self, pod: Pod, netns: NetNs, data_path: DataPath) -> None:
        """Opens the listeners; ListenFailed when a port is taken. Owns ``netns`` on success."""
        self.pod = pod
        self.data_path = data_path
        self.counters = PodCounters()
        self._netns = netns
        self._left: Callable[[ServedPod], None] | None = None
        self._connections: set[LiveFlow] = set()
        self._clients: set[Flow] = set()
        """Remote clients being served: a dial in a client's name needs another port."""
        self._dialled: dict[Flow, int] = {}
        """Our own dials, each with the number of hops behind it (`MAX_HOPS`)."""
        self.mesh = None if data_path.mesh is None else MeshPod(self, data_path.mesh)
        """The pod as a member of the mesh; None: plaintext passthrough."""
        try:
            self._listeners = self._listen()
        except BaseException:
            if self.mesh is not None:
                self.mesh.close()
            raise

    @property
    def active(self) -> int:
        """Connections open now."""
        return len(self._connections)

    @property
    def serving(self) -> bool:
        """Whether new connections are taken."""
        return bool(self._listeners)

    def change(self, pod: Pod) -> None:
        """Takes new facts about the pod."""
        self.pod = pod
        if self.mesh is not None:
            self.mesh.pod_changed()

    def stop(self) -> None:
        """Takes no new connections; those that are open go on."""
        for listener in self._listeners:
            self.data_path.admission.forget(listener)
            listener.close()
        self._listeners = []

    def leave(self, left: Callable[[ServedPod], None]) -> None:
        """Stops, and calls ``left`` when the last connection has ended."""
        self.stop()
        self._left = left
        if self.mesh is not None:
            self.mesh.stop()
        self._leave_if_empty()

    def cut(self) -> None:
        """Ends every connection with a reset."""
        for connection in list(self._connections):
            connection.cut()
        if self.mesh is not None:
            self.mesh.cut()

    def judge_again(self) -> None:
        """The policies have changed: ends what they would not let in any more."""
        for connection in list(self._connections):
            connection.judge()

    def snapshot(self) -> PodSnapshot:
        """The counters of this moment."""
        counters, live = self.counters, self._connections
        return PodSnapshot(
            cookie=self.pod.cookie,
            name=self.pod.name,
            serving=self.serving,
            accepted_out=counters.accepted_out,
            accepted_in=counters.accepted_in,
            active=len(live),
            refused={reason.value: n for reason, n in counters.refused.items()},
            dial_failed=dict(counters.dial_failed),
            reset=counters.reset,
            bytes_sent=counters.bytes_sent + sum(c.sent for c in live),
            bytes_received=counters.bytes_received + sum(c.received for c in live),
        )

    def complain(self, sock: RawSocket, message: str, *args: object) -> None:
        """One WARNING about a connection, named by its accepted socket, unless there are many."""
        lines = self.data_path.lines
        if not lines.take():
            return
        conn = socket_cookie(sock)
        logger.warning("conn.id=%s pod=%s " + message, conn, self.pod.name, *args)
        if missed := lines.forget():
            logger.warning("%d lines about connections were left out", missed)

    def ended(self, connection: Connection) -> None:
        """A passthrough connection is over (told by itself)."""
        self._clients.discard(connection.client_flow)
        self.data_path.dials.discard(connection)
        self.dial_over(connection.dial_flow)
        self.flow_ended(connection)

    def flow_ended(self, flow: LiveFlow) -> None:
        """A connection is over (told by itself)."""
        self._connections.discard(flow)
        self.counters.carried(flow.sent, flow.received)
        self.data_path.admission.closed(flow.files)
        self._leave_if_empty()

    def mesh_changed(self) -> None:
        """A connection to or from another proxy is over."""
        self._leave_if_empty()

    def flow_begun(self, flow: LiveFlow) -> None:
        """One more connection."""
        self._connections.add(flow)
        self.data_path.admission.opened(flow.files)

    @property
    def full(self) -> bool:
        """Whether the pod has as many connections as it may."""
        return len(self._connections) >= self.data_path.max_connections

    def _leave_if_empty(self) -> None:
        if self._left is None or self._connections:
            return
        if self.mesh is not None:
            if not self.mesh.empty:
                return
            self.mesh.close()
        left, self._left = self._left, None
        # the last reference to a namespace that is gone otherwise
        self._netns.close()
        left(self)

    def _listen(self) -> list[Listener]:
        opened: list[tuple[RawSocket, Direction, OnAccept]] = []
        try:
            with self._netns.entered():
                self._ports = SourcePorts(self.data_path.rng, reserved_ports())
                # before those of redirected connections, which the enrolment waits for
                if self.mesh is not None:
                    opened.append((open_listener(HBONE_PORT), Direction.IN, self._accept_hbone))
                    if self.mesh.context.mesh.socks5:
                        listener = open_listener(socks5.PORT, loopback=True)
                        opened.append((listener, Direction.OUT, self._accept_socks))
                for port, direction in PORTS:
                    opened.append((open_listener(port), direction, self._accept))
        except BaseException:
            for sock, _, _ in opened:
                sock.close()
            raise
        data_path = self.data_path
        admission = data_path.admission
        return [
            Listener(
                sock,
                direction,
                data_path.poller,
                on_accept=on_accept,
                has_room=admission.has_room,
                on_pause=admission.paused,
            )
            for sock, direction, on_accept in opened
        ]

    def _accept(self, near: RawSocket, peer: tuple[Any, ...], direction: Direction) -> bool:
        """Starts carrying one connection; False when there was no descriptor for its dial."""
        client = from_sockaddr(peer)
        self.counters.accepted(direction)
        found = self._decide(near, client, direction)
        if isinstance(found, Reason):
            self._refuse(near, client, direction, found)
            return True
        mesh = self.mesh
        if mesh is None:
            return self.carry(
                near, client, direction, found, self._opened(near, client, direction, found)
            )
        if direction is Direction.OUT:
            flow = mesh.outbound(near, client, found.destination)
            self.flow_begun(flow)
            flow.begin()
            return True
        return mesh.inbound_plain(near, client, found)

    def _accept_hbone(self, near: RawSocket, peer: tuple[Any, ...], _: Direction) -> bool:
        """Starts the handshake of another proxy."""
        mesh = self.mesh
        assert mesh is not None
        mesh.inbound_hbone(near, from_sockaddr(peer), from_sockaddr(near.getsockname()))
        return True

    def _accept_socks(self, near: RawSocket, peer: tuple[Any, ...], _: Direction) -> bool:
        """Asks an application of the pod what it wants."""
        mesh = self.mesh
        assert mesh is not None
        mesh.socks(near, from_sockaddr(peer))
        return True

    def begin_outbound(self, near: RawSocket, client: Address, original: Address) -> None:
        """Carries what an application has asked for by SOCKS5."""
        mesh = self.mesh
        assert mesh is not None
        if self.full:
            self._refuse(near, client, Direction.OUT, Reason.OVER_LIMIT)
            return
        flow = mesh.outbound(near, client, original)
        self.flow_begun(flow)
        flow.begin()

    def pass_through(
        self, flow: OutboundFlow, near: RawSocket, route: Route, log: OpenFlow
    ) -> None:
        """Carries a connection of the mesh as plain TCP, in place of ``flow``."""
        self.carry(near, flow.client, Direction.OUT, route, log, original=flow.original)
        # after that, or for a moment there would be nobody, and a drain would be over
        self._connections.discard(flow)
        self.data_path.admission.closed(flow.files)
        self._leave_if_empty()

    def carry(
        self,
        near: RawSocket,
        client: Address,
        direction: Direction,
        route: Route,
        log: OpenFlow,
        *,
        original: Address | None = None,
        judged: Judged | None = None,
    ) -> bool:
        """Carries a connection as plain TCP; False when there was no descriptor for its dial.

        ``original`` is where the client wanted to go, if that is not where the route goes.
        """
        data_path = self.data_path
        destination = route.destination
        client_flow = (
            client.host if direction is Direction.IN else None,
            client.port,
            original or destination,
        )
        hops = self._dialled.get(client_flow, -1) + 1
        if hops > MAX_HOPS:
            log.closed(0, 0, Reason.OWN_CONNECTION.value, ResponseFlag.CONNECT)
            self._refuse(near, client, direction, Reason.OWN_CONNECTION)
            return True
        try:
            far, dial_flow = self.dial(route, client_flow, hops)
        except OSError as error:
            return self._no_dial(near, client, route, error, log)
        connection = Connection(
            self, direction, client, near, far, client_flow, dial_flow, log, judged
        )
        self.flow_begun(connection)
        if direction is Direction.IN:
            self._clients.add(client_flow)
        data_path.dials.add(connection)
        try:
            data_path.poller.add(far.fileno(), STREAM, connection)
        except OSError as error:  # fs.epoll.max_user_watches, memory
            connection.dial_failed(error.errno or 0)
        return True

    def _decide(self, near: RawSocket, client: Address, direction: Direction) -> Route | Reason:
        if self.full:
            return Reason.OVER_LIMIT
        local: Address | None = None
        original: Address | None = None
        if direction is Direction.OUT or self.pod.backend == "iptables":
            original = original_destination(near, ipv6=client.is_ipv6)
        if direction is Direction.IN or (original is not None and original.port in OWN_PORTS):
            local = from_sockaddr(near.getsockname())
        if direction is Direction.IN and original is None:
            original = local  # the listener was chosen without touching the packet
        return decide(direction, original, self.pod, client=client, local=local)

    def dial(self, route: Route, client_flow: Flow, hops: int = 0) -> tuple[RawSocket, Flow]:
        """A socket on its way from inside the pod. OSError.

        The second part is what `dial_over` is to be told when the socket is gone.
        """
        data_path = self.data_path
        if data_path.poller.delivering:
            data_path.whereabouts.enter(self._netns)
            sock, port = self._dial(route, client_flow)
        else:
            with self._netns.entered():
                sock, port = self._dial(route, client_flow)
        flow = (route.source, port, route.destination)
        self._dialled[flow] = hops
        return sock, flow

    def dial_over(self, flow: Flow) -> None:
        """A dialled socket is gone."""
        self._dialled.pop(flow, None)

    def _dial(self, route: Route, client_flow: Flow) -> tuple[RawSocket, int]:
        try:
            return connector.dial(route, self._source_ports(route, client_flow))
        except OSError as error:
            if error.errno not in _EXHAUSTED or not self.data_path.admission.lend():
                raise
        return connector.dial(route, self._source_ports(route, client_flow))

    def _source_ports(self, route: Route, client_flow: Flow) -> Iterator[int]:
        """Ports from which no connection to the destination comes, the client's own included."""
        source, destination = route.source, route.destination
        for port in self._ports.propose():
            flow = (source, port, destination)
            if flow != client_flow and flow not in self._dialled and flow not in self._clients:
                yield port

    def _opened(
        self, near: RawSocket, client: Address, direction: Direction, route: Route
    ) -> OpenFlow:
        return self.data_path.telemetry.opened(
            FlowFacts(
                direction=OUTBOUND if direction is Direction.OUT else INBOUND,
                conn_id=socket_cookie(near),
                pod=self.pod.name,
                src=client,
                dst=route.destination,
                original_dst=route.destination,
            )
        )

    def _refuse(
        self, near: RawSocket, client: Address, direction: Direction, reason: Reason
    ) -> None:
        self.counters.refused[reason] += 1
        self.complain(near, "connection from %s refused: %s", client, reason.value)
        reset_on_close(near)
        near.close()

    def _no_dial(
        self, near: RawSocket, client: Address, route: Route, error: OSError, log: OpenFlow
    ) -> bool:
        """The dial could not even be started; False when that is for want of descriptors."""
        self.counters.dial_failed[errno_name(error.errno)] += 1
        log.closed(0, 0, f"io error: {error.strerror}", ResponseFlag.CONNECT)
        self.complain(near, DIAL_FAILED, route.destination, client, error.strerror)
        reset_on_close(near)
        near.close()
        return error.errno not in _EXHAUSTED
