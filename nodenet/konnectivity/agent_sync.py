"""Which server an agent connects to next, and when. No I/O.

As upstream's (apiserver-network-proxy: pkg/agent/clientset.go): servers are known by the id they
answer with; a connection to one that is known already is a duplicate and is given up; while fewer
servers are connected than are said to exist another attempt is made, one interval after a duplicate
and after growing waits behind a failure. Beyond it:

- A name with several addresses is not a lottery: an address whose server is not connected comes
  first, and each address waits by itself after a failure.
- After a new server the next attempt follows at once, and so it does when a server is lost.
- With ``forever`` and every server connected, duplicates make the waits grow to the cap: each is a
  whole TLS handshake and a token review.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

CountSource = Literal["default", "max"]
#: Growth of the waits behind failures, and the share that is random (wait.Backoff of client-go).
FACTOR: Final = 1.5
JITTER: Final = 0.1
#: Attempts under way at a time to one address: one server behind it that accepts and then says
#: nothing must not keep the others from being found.
MAX_ATTEMPTS: Final = 4
#: An attempt that takes longer does not keep the next one from beginning.
PATIENCE_SECONDS: Final = 2.0


@dataclass(slots=True)
class _Place:
    """One address of the servers' name."""

    tried_at: float = float("-inf")
    due_at: float = float("-inf")
    step: float = 0.0
    """The next wait behind a failure; 0: the interval."""
    attempts: int = 0
    server_id: str | None = None
    """Who answered there last."""


@dataclass(slots=True, kw_only=True)
class Sync:
    """See the module. Addresses are texts; ``now`` is the time of the loop in seconds."""

    interval: float
    cap: float
    forever: bool = False
    source: CountSource = "default"
    rng: Random
    servers: set[str] = field(default_factory=set)
    """Ids of the connected servers that are not going away."""
    lease_count: int | None = None
    """How many leases are valid; None while leases are not looked at."""
    draining: bool = False
    _response_count: int = 1
    _places: dict[str, _Place] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many servers there are said to be."""
        if self.lease_count is None:
            found = self._response_count
        elif self.source == "max":
            found = max(self.lease_count, self._response_count)
        else:
            found = self.lease_count
        return max(found, 1)

    @property
    def count_from(self) -> str:
        """Where `count` is from: ``lease``, ``server`` or ``max``."""
        if self.lease_count is None:
            return "server"
        return "max" if self.source == "max" else "lease"

    @property
    def addresses(self) -> set[str]:
        """Where servers may be, or an attempt is still under way."""
        return set(self._places)

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """What the servers' name leads to now. Nothing found changes nothing."""
        if not addresses:
            return
        for gone in self._places.keys() - set(addresses):
            if not self._places[gone].attempts:
                del self._places[gone]
        for address in addresses:
            self._places.setdefault(address, _Place())

    def next_address(self, now: float) -> str | None:
        """Where to connect to now; None when there is nothing to do yet. Counts as begun."""
        if self.draining:
            return None
        uncovered = [a for a, p in self._places.items() if p.server_id not in self.servers]
        if len(self._places) > 1 and uncovered:
            candidates = uncovered
        elif self.forever or len(self.servers) < self.count:
            candidates = list(self._places)
        else:
            return None
        free = [
            (place.tried_at, address)
            for address in candidates
            if (place := self._places[address]).due_at <= now and place.attempts < MAX_ATTEMPTS
        ]
        if not free:
            return None
        address = min(free)[1]
        place = self._places[address]
        place.tried_at = now
        place.attempts += 1
        place.due_at = now + max(PATIENCE_SECONDS, self.interval)
        return address

    def wait(self, now: float) -> float:
        """Seconds until `next_address` is to be asked again, unless something happens before."""
        due = [p.due_at - now for p in self._places.values() if p.due_at > now]
        return min(due, default=self._jittered(self.interval))

    def connected(self, address: str, server_id: str, count: int | None, now: float) -> bool:
        """An attempt reached a server; False: a duplicate, to be given up. ``count`` its header."""
        place = self._end_attempt(address)
        place.server_id = server_id
        if server_id in self.servers:
            satisfied = self.forever and len(self.servers) >= self.count
            place.due_at = now + (self._grow(place) if satisfied else self._jittered(self.interval))
            return False
        place.step = 0.0
        place.due_at = now + self.interval * JITTER * self.rng.random()
        self.servers.add(server_id)
        if count is not None:
            self._response_count = count
        return True

    def failed(self, address: str, now: float) -> None:
        """An attempt came to nothing."""
        place = self._end_attempt(address)
        place.due_at = now + self._grow(place)

    def lost(self, server_id: str, now: float) -> None:
        """A server is gone, or going: another one is sought soon, by many agents at a time."""
        self.servers.discard(server_id)
        soon = now + self.interval * self.rng.random()
        for place in self._places.values():
            if place.server_id == server_id or place.server_id is None:
                place.step = 0.0
                place.due_at = min(place.due_at, soon) if place.due_at > now else soon

    def _end_attempt(self, address: str) -> _Place:
        place = self._places.setdefault(address, _Place())
        place.attempts = max(0, place.attempts - 1)
        return place

    def _grow(self, place: _Place) -> float:
        """The next wait of an address, which makes the one after it longer, up to the cap."""
        step = place.step or self.interval
        place.step = min(step * FACTOR, self.cap)
        return self._jittered(step)

    def _jittered(self, seconds: float) -> float:
        return seconds * (1.0 + JITTER * self.rng.random())
