"""The order in which identities go to the CA: the most urgent first, then the oldest.

Source: ztunnel: src/identity/manager.rs, Priority.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import Final

from nodenet.identity.spiffe import Identity

#: Entries that no longer count are thrown out when they are more than this and than the others.
_STALE_KEPT: Final = 64


class Priority(IntEnum):
    """How urgent a request is."""

    REAL_TIME = 0
    """A connection waits for it."""
    WARMUP = 1
    """A workload has come that will need it."""
    BACKGROUND = 2
    """A renewal."""


class RequestQueue:
    """Identities that wait for their turn, each once."""

    def __init__(self) -> None:
        self._heap: list[tuple[Priority, float, int, Identity]] = []
        # what counts; other entries of the heap are of the past
        self._live: dict[Identity, tuple[Priority, float, int, Identity]] = {}
        self._pushed = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._live)

    def __contains__(self, identity: Identity) -> bool:
        """Whether it waits."""
        return identity in self._live

    def push(self, identity: Identity, priority: Priority, since: float) -> None:
        """Queues an identity, or makes its request more urgent; ``since`` is then kept."""
        queued = self._live.get(identity)
        if queued is not None:
            if queued[0] <= priority:
                return
            since = queued[1]
        self._pushed += 1  # the order of those that are equal, and no comparing of identities
        entry = (priority, since, self._pushed, identity)
        self._live[identity] = entry
        heapq.heappush(self._heap, entry)
        self._sweep()

    def discard(self, identity: Identity) -> None:
        """Takes an identity out; nothing happens when it does not wait."""
        if self._live.pop(identity, None) is not None:
            self._sweep()

    def pop(self) -> Identity | None:
        """The next one; None when nobody waits."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            identity = entry[3]
            if self._live.get(identity) is entry:
                del self._live[identity]
                return identity
        return None

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._live) + _STALE_KEPT:
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)
