"""The time of a log line, cheap for many lines in one second."""

from __future__ import annotations

import time
from collections.abc import Callable


class Timestamps:
    """RFC 3339, UTC, microseconds; the date is rendered once a second."""

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._second = -1
        self._date = ""

    def text(self) -> str:
        """This moment."""
        second, rest = divmod(self._clock_ns(), 1_000_000_000)
        if second != self._second:
            self._second = second
            self._date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._date}.{rest // 1000:06d}Z"
