"""Late timers are counted as late as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodenet.agents.ztunnel.loop_lag import LoopLag


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock is set by hand and which never runs."""

    now = 10.0

    def time(self) -> float:
        return self.now


def test_late_looks_are_in_their_bucket() -> None:
    loop = Loop()
    lag = LoopLag(loop)
    for late in (0.0, 0.004, 0.06, 3.0):
        loop.now = lag._due + late
        lag._look()
    lag.close()
    loop.close()
    buckets = {bound: count for bound, count in lag.buckets()}
    assert [buckets[b] for b in ("0.001", "0.005", "0.05", "0.1", "1.0", "+Inf")] == [
        1, 2, 2, 3, 3, 4,
    ]  # fmt: skip
    assert round(lag.sum, 6) == 3.064


def test_it_looks_by_itself(
    loop: asyncio.AbstractEventLoop, until: Callable[[Callable[[], object]], None]
) -> None:
    lag = LoopLag(loop)
    until(lambda: lag.buckets()[-1][1] == 2)
    lag.close()
