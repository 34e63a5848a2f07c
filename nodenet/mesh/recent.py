"""A bounded cache whose hits cost one look-up in a dictionary.

Two generations: what is used is put into the young one; when that is full it becomes the old one,
and the old one is dropped. So what was used within the last `limit` insertions is there, and
nothing is reordered on a hit, as an LRU list would be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Holds between ``limit`` and twice ``limit`` of what was put into it last.

    The limit counts entries, or what ``weigh`` says that a value weighs.
    """

    __slots__ = ("_limit", "_old", "_weigh", "_weight", "_young")

    def __init__(self, limit: int, weigh: Callable[[V], int] | None = None) -> None:
        self._limit = limit
        self._weigh = weigh
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._weight = 0

    def get(self, key: K) -> V | None:
        """The value, None when it is not there (any more)."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Adds or replaces. A value that weighs more than the limit ends its generation."""
        if self._weight >= self._limit:
            self._old = self._young
            self._young = {}
            self._weight = 0
        self._young[key] = value
        self._weight += self._weigh(value) if self._weigh is not None else 1

    def discard(self, key: K) -> None:
        """Forgets a key, known or not."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
