"""What the drivers of `bench.konnectivity` return, and how they fail."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from nodenet.errors import NodenetError

#: No progress for so long is a failure, or in the stalled scenes the answer.
PATIENCE_SECONDS: Final = 10.0


class TunnelFailed(NodenetError):
    """A tunnel could not be opened, or did not carry what was sent."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How many, how many in a second, and how long each took."""

    count: int
    per_second: float
    p50_us: float
    p99_us: float


def rate(times: list[float], elapsed: float) -> Rate:
    """Of what took so long each."""
    if len(times) < 2:
        return Rate(len(times), len(times) / elapsed, 0.0, 0.0)
    points = statistics.quantiles(times, n=100)
    return Rate(len(times), len(times) / elapsed, points[49] * 1e6, points[98] * 1e6)
