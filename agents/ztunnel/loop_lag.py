"""How late the event loop is: the first sign of too much work, or of a step that takes too long."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final

#: Seconds between two looks.
INTERVAL: Final = 0.25
#: Upper bounds in seconds.
BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class LoopLag:
    """Sets a timer again and again and counts how late it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0
        """Seconds, all looks together."""
        self._due = loop.time() + INTERVAL
        self._timer: asyncio.TimerHandle | None = loop.call_at(self._due, self._look)

    def close(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and how many looks were at most so late, as a histogram has them."""
        total, found = 0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found

    def _look(self) -> None:
        now = self._loop.time()
        late = max(now - self._due, 0.0)
        self._counts[bisect_left(BUCKETS, late)] += 1
        self.sum += late
        self._due = now + INTERVAL
        self._timer = self._loop.call_at(self._due, self._look)
