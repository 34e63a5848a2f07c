"""What all pods of one worker share of the mesh: what is known, timers, caches."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from nodenet.agents.ztunnel import socks5
from nodenet.agents.ztunnel.deadlines import Deadlines
from nodenet.agents.ztunnel.inbound import InboundFlow
from nodenet.agents.ztunnel.inbound_peer import InboundPeer
from nodenet.agents.ztunnel.outbound import OutboundFlow
from nodenet.agents.ztunnel.poller import Poller
from nodenet.agents.ztunnel.pool import IDLE_SECONDS, MAX_STREAMS, PoolTimers
from nodenet.agents.ztunnel.resolver import WAIT_SECONDS, Resolver
from nodenet.agents.ztunnel.revocation import Revocation
from nodenet.agents.ztunnel.telemetry import Telemetry
from nodenet.agents.ztunnel.transport import Wires
from nodenet.identity.store import CertificateStore
from nodenet.identity.tls import TlsContexts
from nodenet.mesh.policy_sets import PolicySets
from nodenet.mesh.state import MeshState

if TYPE_CHECKING:
    pass

#: Seconds a connection waits for the pod's own workload to appear in the state
#: (ztunnel: src/state.rs, wait_for_workload).
WORKLOAD_SECONDS: Final = 5.0
#: Seconds a peer has to answer a CONNECT: its connect to the application takes up to 10.
ANSWER_SECONDS: Final = 15.0
#: Seconds of a connection on 15008 until its peer is known: our own certificate may have to come
#: first, then there is the handshake, which has a deadline of its own.
STRANGER_SECONDS: Final = 20.0
#: Seconds of a connection on 15008 without any tunnel before it is closed in order. A peer's pool
#: lets go of it after five minutes, so this one is for peers that have no such thing.
PEER_IDLE_SECONDS: Final = 600.0


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


class WorkloadWaiter(Protocol):
    """Cannot go on before the pod's own workload is known."""

    def begin(self) -> object:
        """Tries again."""

    def workload_unknown(self) -> None:
        """It has not appeared in time."""


def _workload_unknown(waiter: WorkloadWaiter) -> None:
    waiter.workload_unknown()


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
    strangers: Deadlines[InboundPeer]
    peer_idle: Deadlines[InboundPeer]
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
            strangers=Deadlines(loop, STRANGER_SECONDS, InboundPeer.stay_strange),
            peer_idle=Deadlines(loop, PEER_IDLE_SECONDS, InboundPeer.shutdown),
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
            self.strangers,
            self.peer_idle,
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
