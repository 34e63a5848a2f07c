"""One pod's share of the data path: its listeners, its live connections, its counters."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from _socket import socket as RawSocket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from nodenet.abi import INBOUND_PORT, OUTBOUND_PORT, Direction
from nodenet.agents.ztunnel import connector
from nodenet.agents.ztunnel.address import Address, from_sockaddr, original_destination
from nodenet.agents.ztunnel.admission import Admission
from nodenet.agents.ztunnel.connection import DIAL_FAILED, Connection, errno_name, socket_cookie
from nodenet.agents.ztunnel.counters import PodCounters, PodSnapshot
from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.decision import OWN_PORTS, Reason, Route, decide
from nodenet.agents.ztunnel.listeners import Listener, open_listener
from nodenet.agents.ztunnel.logs import LineBudget
from nodenet.agents.ztunnel.pod import Pod
from nodenet.agents.ztunnel.poller import STREAM, Poller
from nodenet.agents.ztunnel.relay import Relay, reset_on_close
from nodenet.agents.ztunnel.source_ports import SourcePorts, reserved_ports
from nodenet.agents.ztunnel.whereabouts import Whereabouts
from nodenet.kernel.netns import NetNs

#: The ports of a pod this version listens on, and what arrives there.
PORTS: Final = ((OUTBOUND_PORT, Direction.OUT), (INBOUND_PORT, Direction.IN))
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})

#: A dial whose own socket arrives as a captured connection is dialled again at most so often.
#: More than once, because it cannot be told for certain: an application's connection may have the
#: same port and destination as a dial. So often in a row that never happens by chance.
MAX_HOPS: Final = 16

#: Host and port a connection comes from (host None: the pod's own) and where it goes.
Flow = tuple[str | None, int, Address]

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


class ServedPod:
    """A pod being served, from its listeners to its last connection."""

    def __init__(self, pod: Pod, netns: NetNs, data_path: DataPath) -> None:
        """Opens the listeners; ListenFailed when a port is taken. Owns ``netns`` on success."""
        self.pod = pod
        self.data_path = data_path
        self.counters = PodCounters()
        self._netns = netns
        self._left: Callable[[ServedPod], None] | None = None
        self._connections: set[Connection] = set()
        self._clients: set[Flow] = set()
        """Remote clients being served: a dial in a client's name needs another port."""
        self._dialled: dict[Flow, int] = {}
        """Our own dials, each with the number of hops behind it (`MAX_HOPS`)."""
        self._listeners = self._listen()

    @property
    def active(self) -> int:
        """Connections open now."""
        return len(self._connections)

    @property
    def serving(self) -> bool:
        """Whether new connections are taken."""
        return bool(self._listeners)

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
        self._leave_if_empty()

    def cut(self) -> None:
        """Ends every connection with a reset."""
        for connection in list(self._connections):
            connection.cut()

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
        """A connection is over (told by itself)."""
        self._connections.discard(connection)
        self._clients.discard(connection.client_flow)
        self._dialled.pop(connection.dial_flow, None)
        self.counters.carried(connection.sent, connection.received)
        self.data_path.dials.discard(connection)
        self.data_path.admission.closed()
        self._leave_if_empty()

    def _leave_if_empty(self) -> None:
        if self._left is not None and not self._connections:
            left, self._left = self._left, None
            # the last reference to a namespace that is gone otherwise
            self._netns.close()
            left(self)

    def _listen(self) -> list[Listener]:
        opened: list[tuple[RawSocket, Direction]] = []
        try:
            with self._netns.entered():
                self._ports = SourcePorts(self.data_path.rng, reserved_ports())
                for port, direction in PORTS:
                    opened.append((open_listener(port), direction))
        except BaseException:
            for sock, _ in opened:
                sock.close()
            raise
        data_path = self.data_path
        admission = data_path.admission
        return [
            Listener(
                sock,
                direction,
                data_path.poller,
                on_accept=self._accept,
                has_room=admission.has_room,
                on_pause=admission.paused,
            )
            for sock, direction in opened
        ]

    def _accept(self, near: RawSocket, peer: tuple[Any, ...], direction: Direction) -> bool:
        """Starts carrying one connection; False when there was no descriptor for its dial."""
        data_path = self.data_path
        client = from_sockaddr(peer)
        self.counters.accepted(direction)
        found = self._decide(near, client, direction)
        if isinstance(found, Reason):
            self._refuse(near, client, found)
            return True
        destination = found.destination
        client_flow = (client.host if direction is Direction.IN else None, client.port, destination)
        hops = self._dialled.get(client_flow, -1) + 1
        if hops > MAX_HOPS:
            self._refuse(near, client, Reason.OWN_CONNECTION)
            return True
        try:
            far, port = self._dial(found, client_flow)
        except OSError as error:
            return self._no_dial(near, client, found, error)
        dial_flow = (found.source, port, destination)
        connection = Connection(self, direction, client, near, far, client_flow, dial_flow)
        self._connections.add(connection)
        if direction is Direction.IN:
            self._clients.add(client_flow)
        self._dialled[dial_flow] = hops
        data_path.admission.opened()
        data_path.dials.add(connection)
        try:
            data_path.poller.add(far.fileno(), STREAM, connection)
        except OSError as error:  # fs.epoll.max_user_watches, memory
            connection.dial_failed(error.errno or 0)
        return True

    def _decide(self, near: RawSocket, client: Address, direction: Direction) -> Route | Reason:
        if len(self._connections) >= self.data_path.max_connections:
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

    def _dial(self, route: Route, client_flow: Flow) -> tuple[RawSocket, int]:
        data_path = self.data_path
        data_path.whereabouts.enter(self._netns)
        try:
            return connector.dial(route, self._source_ports(route, client_flow))
        except OSError as error:
            if error.errno not in _EXHAUSTED or not data_path.admission.lend():
                raise
        return connector.dial(route, self._source_ports(route, client_flow))

    def _source_ports(self, route: Route, client_flow: Flow) -> Iterator[int]:
        """Ports from which no connection to the destination comes, the client's own included."""
        source, destination = route.source, route.destination
        for port in self._ports.propose():
            flow = (source, port, destination)
            if flow != client_flow and flow not in self._dialled and flow not in self._clients:
                yield port

    def _refuse(self, near: RawSocket, client: Address, reason: Reason) -> None:
        self.counters.refused[reason] += 1
        self.complain(near, "connection from %s refused: %s", client, reason.value)
        reset_on_close(near)
        near.close()

    def _no_dial(self, near: RawSocket, client: Address, route: Route, error: OSError) -> bool:
        """The dial could not even be started; False when that is for want of descriptors."""
        self.counters.dial_failed[errno_name(error.errno)] += 1
        self.complain(near, DIAL_FAILED, route.destination, client, error.strerror)
        reset_on_close(near)
        near.close()
        return error.errno not in _EXHAUSTED
