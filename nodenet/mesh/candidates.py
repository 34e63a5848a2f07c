"""Endpoints a connection may go to, with their weights, and the choice among them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from random import Random

import msgspec

from nodenet.mesh.model import ServiceEndpoint


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a random choice may fall on, for those who explain it."""

    name: str
    """A workload's uid; a waypoint's address or ``namespace/hostname``."""
    probability: float
    """Of this choice, 0 to 1."""
    chosen: bool


class Candidates(msgspec.Struct, frozen=True):
    """The endpoints that a choice may fall on, and how likely each is."""

    endpoints: tuple[ServiceEndpoint, ...]
    cumulative: tuple[int, ...] | None
    """Sums of the capacities up to each endpoint; None: all have capacity 1."""

    @property
    def total(self) -> int:
        """Sum of the capacities; 0: nothing to choose from."""
        if self.cumulative is None:
            return len(self.endpoints)
        return self.cumulative[-1] if self.cumulative else 0

    def choose(self, rng: Random) -> ServiceEndpoint | None:
        """One of them at random by capacity; None when all capacities are zero."""
        total = self.total
        if not total:
            return None
        if self.cumulative is None:
            return self.endpoints[int(rng.random() * total)]
        return self.endpoints[bisect_right(self.cumulative, rng.random() * total)]

    def shares(self) -> Iterator[tuple[ServiceEndpoint, float]]:
        """Each endpoint with its probability; those that cannot be chosen are left out."""
        total = self.total
        for endpoint in self.endpoints:
            if endpoint.capacity:
                yield endpoint, endpoint.capacity / total

    def listed(self, chosen: str | None) -> list[Candidate]:
        """For explain, likeliest first; ``chosen`` is the uid that was taken."""
        found = [
            Candidate(name=endpoint.uid, probability=share, chosen=endpoint.uid == chosen)
            for endpoint, share in self.shares()
        ]
        return sorted(found, key=lambda each: (not each.chosen, -each.probability, each.name))
