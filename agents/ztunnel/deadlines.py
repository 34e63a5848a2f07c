"""One timer for many things that all get the same time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Deadlines(Generic[T]):
    """Calls ``expired(item)`` for each item that is not discarded within ``seconds``.

    Items are hashable and in here at most once. Costs a dictionary entry an item, where a timer
    each would cost a handle and a heap.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, expired: Callable[[T], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expired = expired
        # in order of insertion, which is the order of their deadlines
        self._ends: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._ends)

    def add(self, item: T) -> None:
        """Starts an item's time."""
        end = self._loop.time() + self._seconds
        self._ends[item] = end
        if self._timer is None:
            self._timer = self._loop.call_at(end, self._fire)

    def discard(self, item: T) -> None:
        """Ends an item's time; nothing happens when it is not in here."""
        self._ends.pop(item, None)

    def close(self) -> None:
        """Forgets every item."""
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        due = []
        for item, end in self._ends.items():
            if end > now:
                self._timer = self._loop.call_at(end, self._fire)
                break
            due.append(item)
        for item in due:
            self._ends.pop(item, None)
        for item in due:
            try:
                self._expired(item)
            except Exception:  # the others' time is over too
                logger.exception("bug: the deadline of a %s", type(item).__name__)
