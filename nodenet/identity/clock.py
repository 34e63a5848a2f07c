"""The time the certificate store goes by, so that tests need none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """It does not come; nothing happens when it has."""
        ...  # pragma: no cover


class Clock(Protocol):
    """Wall-clock time, which certificates are valid by, and calls at a later time."""

    def now(self) -> float:
        """Unix time, seconds."""
        ...  # pragma: no cover

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Calls once, ``seconds`` from now."""
        ...  # pragma: no cover


class LoopClock:
    """The running loop's timers and the system's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """See `Clock`."""
        return time.time()

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """See `Clock`."""
        return self._loop.call_later(seconds, call)
