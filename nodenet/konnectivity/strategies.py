"""Which agent carries a dial: the strategies, tried in their order.

| strategy | agents it knows | takes |
|---|---|---|
| default | every one, by agent id | any, from a random one on |
| destHost | every one, by its addresses and host names | the one that names the host |
| defaultRoute | those with ``default-route=true``, by agent id | as default |

An agent id may stand for several streams; the first one that is not draining is taken, because a
later one is likely a duplicate that its agent is about to close. A draining stream is taken when
there is nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from nodenet.konnectivity.errors import KonnectivityError
from nodenet.konnectivity.identifiers import Identifiers, host_of, normal_host

#: What a frontend is told when no strategy finds an agent.
NO_AGENT: Final = "No agent available"


class Strategy(Enum):
    """The value is the flag's and the metrics' word."""

    DEFAULT = "default"
    DEST_HOST = "destHost"
    DEFAULT_ROUTE = "defaultRoute"


class NoAgent(KonnectivityError):
    """No strategy has an agent for a host."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{host}: {NO_AGENT}")
        self.host = host


class Candidate(Protocol):
    """What a strategy needs to know of a backend."""

    @property
    def agent_id(self) -> str: ...
    @property
    def identifiers(self) -> Identifiers: ...
    @property
    def draining(self) -> bool: ...


B = TypeVar("B", bound=Candidate)


class Storage(Generic[B]):
    """The backends one strategy knows, by key, each list in the order of their arrival."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._by_key: dict[str, list[B]] = {}
        # for a random pick without a walk
        self._keys: list[str] = []
        self._place: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of keys: what readiness and ``server_ready_backends`` count."""
        return len(self._keys)

    def keys_of(self, backend: B) -> tuple[str, ...]:
        """Under which keys this strategy knows a backend."""
        if self.strategy is Strategy.DEST_HOST:
            return backend.identifiers.destinations()
        if self.strategy is Strategy.DEFAULT_ROUTE and not backend.identifiers.default_route:
            return ()
        return (backend.agent_id,)

    def add(self, backend: B) -> None:
        """Knows one backend more."""
        for key in self.keys_of(backend):
            found = self._by_key.get(key)
            if found is None:
                self._by_key[key] = [backend]
                self._place[key] = len(self._keys)
                self._keys.append(key)
            else:
                found.append(backend)

    def remove(self, backend: B) -> None:
        """Forgets this object, whatever else has its keys."""
        for key in self.keys_of(backend):
            found = [b for b in self._by_key.get(key, ()) if b is not backend]
            if found:
                self._by_key[key] = found
            elif self._by_key.pop(key, None) is not None:
                place, last = self._place.pop(key), self._keys.pop()
                if last != key:
                    self._keys[place] = last
                    self._place[last] = place

    def candidates(self, host: str) -> list[B]:
        """Every backend that could carry a dial to ``host``, in no particular order of keys."""
        if self.strategy is Strategy.DEST_HOST:
            return list(self._by_key.get(normal_host(host), ()))
        return [_first(found) for found in self._by_key.values()]

    def pick(self, address: str, rng: random.Random) -> B | None:
        """The backend for a dial to ``host:port``."""
        if self.strategy is Strategy.DEST_HOST:
            named = self._by_key.get(normal_host(host_of(address)))
            return _first(named) if named else None
        keys = self._keys
        if not keys:
            return None
        start = int(rng.random() * len(keys))
        # an agent that is replaced has its id twice for a while: draining, and anew
        found = _first(self._by_key[keys[start]])
        if not found.draining:
            return found
        return _first(_first(self._by_key[key]) for key in _around(keys, start))


def _around(keys: list[str], start: int) -> Iterator[str]:
    for at in range(len(keys)):
        yield keys[start + at - len(keys)]


def _first(backends: Iterable[B]) -> B:
    """The first that is not draining, else the first; there is one."""
    draining: B | None = None
    for backend in backends:
        if not backend.draining:
            return backend
        draining = draining or backend
    assert draining is not None
    return draining


@dataclass(frozen=True, slots=True)
class Step(Generic[B]):
    """What one strategy says about a host."""

    strategy: Strategy
    fired: bool
    candidates: tuple[B, ...]
    why: str


class Backends(Generic[B]):
    """All backends of a server, known to each of its strategies."""

    def __init__(self, strategies: Iterable[Strategy]) -> None:
        self.storages = tuple(Storage[B](strategy) for strategy in dict.fromkeys(strategies))
        self._all: dict[int, B] = {}

    def __iter__(self) -> Iterator[B]:
        return iter(list(self._all.values()))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, backend: B) -> None:
        """Knows one backend more."""
        self._all[id(backend)] = backend
        for storage in self.storages:
            storage.add(backend)

    def remove(self, backend: B) -> None:
        """Forgets it; nothing happens when it is not known."""
        if self._all.pop(id(backend), None) is not None:
            for storage in self.storages:
                storage.remove(backend)

    def pick(self, address: str, rng: random.Random) -> B:
        """The backend for a dial to ``host:port``. NoAgent."""
        for storage in self.storages:
            found = storage.pick(address, rng)
            if found is not None:
                return found
        raise NoAgent(host_of(address))

    def ready(self) -> bool:
        """Whether the first strategy knows an agent (upstream's readiness)."""
        return len(self.storages[0]) > 0

    def explain(self, address: str) -> list[Step[B]]:
        """What each strategy says about an address, in their order; the first that fired counts."""
        host = host_of(address)
        steps: list[Step[B]] = []
        done = False
        for storage in self.storages:
            found = tuple(storage.candidates(host))
            fires = bool(found) and not done
            steps.append(Step(storage.strategy, fires, found, _why(storage, host, found)))
            done = done or fires
        return steps


def _why(storage: Storage[B], host: str, found: tuple[B, ...]) -> str:
    match storage.strategy:
        case Strategy.DEST_HOST if found:
            return f"identifier {normal_host(host)} of {found[0].agent_id}"
        case Strategy.DEST_HOST:
            return f"none of {len(storage)} identifiers is {normal_host(host)}"
        case Strategy.DEFAULT_ROUTE if not found:
            return "no agent has default-route=true"
        case Strategy.DEFAULT_ROUTE:
            return f"any of {len(found)} agents with default-route=true"
        case _ if found:
            return f"any of {len(found)} agents"
        case _:
            return "no agent is connected"
