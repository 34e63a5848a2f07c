"""The server's tables: agents, dials under way, open connections. No I/O.

Frontends dial through it, agents' streams are added to it, and the clock drives `ServerCore.tick`.
Every entry belongs to exactly one agent's stream, so what is left when that ends is nothing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator
from typing import Final

from nodenet.konnectivity.backend import MAX_DIALS, Backend, Link
from nodenet.konnectivity.extensions import Extensions
from nodenet.konnectivity.identifiers import Identifiers
from nodenet.konnectivity.packets import DialRequest, push_packet
from nodenet.konnectivity.server_counts import DialFailure, Reset, ServerCounts
from nodenet.konnectivity.server_tunnel import End, Frontend, Refusal, Tunnel
from nodenet.konnectivity.strategies import NO_AGENT, Backends, NoAgent, Strategy

#: Seconds after which a dial is given up where no time-out is set: an agent answers within 5
#: (upstream's dial time-out), konnectivity-client gives up after 30.
DIAL_BACKSTOP_SECONDS: Final = 60.0
#: Seconds between two calls of `ServerCore.tick`; what every deadline here is exact to.
TICK_SECONDS: Final = 0.25

DIAL_TIMEOUT: Final = "timed out waiting for backend dial"

logger = logging.getLogger(__name__)


class ServerCore:
    """See the module. ``now`` is the time of the loop in seconds, everywhere."""

    def __init__(
        self,
        strategies: Iterable[Strategy] = (Strategy.DEFAULT,),
        *,
        rng: random.Random,
        dial_timeout: float = 0.0,
        now: float = 0.0,
    ) -> None:
        self.backends = Backends[Backend](strategies)
        self.counts = ServerCounts()
        self.now = now
        """When the latest thing happened that may end something, for what is not told the time.

        Of DATA nobody writes it down: it may be a tick old there.
        """
        self._rng = rng
        self._dial_timeout = dial_timeout
        self._watched: dict[int, Tunnel] = {}
        self._stalled: dict[int, Backend] = {}

    # -- agents ---------------------------------------------------------------------------------

    def add_backend(
        self,
        link: Link,
        *,
        agent_id: str,
        identifiers: Identifiers,
        peer: Extensions,
        address: str,
        now: float,
    ) -> Backend:
        """An agent's stream is accepted."""
        self.now = now
        backend = Backend(
            self,
            link,
            agent_id=agent_id,
            identifiers=identifiers,
            peer=peer,
            address=address,
            now=now,
        )
        self.backends.add(backend)
        return backend

    def remove_backend(self, backend: Backend, text: str, now: float) -> None:
        """An agent's stream is over, ``text`` says how."""
        self.now = now
        self.backends.remove(backend)
        self._stalled.pop(id(backend), None)
        backend.lost(text)

    # -- frontends ------------------------------------------------------------------------------

    def dial(
        self,
        frontend: Frontend,
        address: str,
        now: float,
        *,
        dial_id: int | None = None,
        message: bytes | None = None,
        protocol: str = "tcp",
    ) -> Tunnel | Refusal:
        """Begins a dial; the answer comes to the frontend later, a Refusal is there at once.

        ``message`` is the client's own DIAL_REQ, which is forwarded as it is.
        """
        self.now = now
        try:
            backend = self.backends.pick(address, self._rng)
        except NoAgent:
            logger.debug("Failed to get a backend: %s dialAddress=%s", NO_AGENT, address)
            return self._refusal(DialFailure.NO_AGENT, NO_AGENT)
        if len(backend.dials) >= MAX_DIALS:
            text = f"{MAX_DIALS} dials wait for agent {backend.agent_id}"
            return self._refusal(DialFailure.TOO_MANY_DIALS, text)
        chosen = self.new_dial_id() if dial_id is None else dial_id
        tunnel = Tunnel(backend, frontend, address, chosen, now)

        def request(wire_id: int) -> bytes:
            if message is not None and wire_id == dial_id:
                return message
            return push_packet(DialRequest(protocol, address, wire_id))

        backend.dial(tunnel, request)
        return tunnel

    def new_dial_id(self) -> int:
        """A random positive 63-bit number."""
        return self._rng.getrandbits(63) or 1

    def failed(self, reason: DialFailure) -> None:
        """Counts a dial that came to nothing."""
        self.counts.dial_failures[reason] += 1

    def _refusal(self, reason: DialFailure, text: str) -> Refusal:
        self.failed(reason)
        return Refusal(reason, text)

    # -- the clock ------------------------------------------------------------------------------

    def watch(self, tunnel: Tunnel) -> None:
        """Has a tunnel cut at its ``stop_at``."""
        self._watched[id(tunnel)] = tunnel

    def watch_stall(self, backend: Backend) -> None:
        """Has a backend's stalled tunnels looked for."""
        self._stalled[id(backend)] = backend

    def tick(self, now: float) -> None:
        """Everything that happens because time has passed; every `TICK_SECONDS`."""
        self.now = now
        oldest = now - (self._dial_timeout or DIAL_BACKSTOP_SECONDS)
        for backend in self.backends:
            if backend.dials:
                self._expire(backend, oldest)
        for key, tunnel in list(self._watched.items()):
            if tunnel.stop_at is None:
                del self._watched[key]
            elif tunnel.stop_at <= now:
                del self._watched[key]
                reason = Reset.IDLE if tunnel.end is End.HALF else Reset.LINGER
                tunnel.backend.cut(tunnel, reason, "no answer of the remote")
        for key, backend in list(self._stalled.items()):
            if not backend.check_stalled(now):
                self._stalled.pop(key, None)

    def _expire(self, backend: Backend, oldest: float) -> None:
        """Gives up the dials that began at ``oldest`` or before."""
        stuck = False
        while backend.dials:
            tunnel = next(iter(backend.dials.values()))  # in the order of their beginning
            if tunnel.started_at > oldest:
                break
            # an agent that does not even take the DIAL_REQ takes no other either
            stuck = stuck or (bool(self._dial_timeout) and not tunnel.dial_sent)
            backend.expire(tunnel, DIAL_TIMEOUT)
        if stuck:
            self.backends.remove(backend)
            backend.retire(DIAL_TIMEOUT)

    # -- what there is --------------------------------------------------------------------------

    def tunnels(self) -> Iterator[Tunnel]:
        """Every open and pending one."""
        for backend in self.backends:
            yield from list(backend.tunnels.values())
            yield from list(backend.dials.values())

    @property
    def pending(self) -> int:
        """Dials under way."""
        return sum(len(backend.dials) for backend in self.backends)

    @property
    def established(self) -> int:
        """Open connections."""
        return sum(len(backend.tunnels) for backend in self.backends)
