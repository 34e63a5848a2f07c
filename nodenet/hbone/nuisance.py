"""How much work for nothing a peer may cause: one allowance for all kinds of it.

A frame is cheap to send and some frames make the receiver answer, decode or dial. What such a
frame costs is taken from an allowance that fills again with time; real peers never come near it,
a flood ends the connection with ENHANCE_YOUR_CALM (RFC 9113 section 10.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodenet.hbone.errors import ErrorCode, H2Error

#: Points a peer may spend at once, and how many come back in a second.
ALLOWANCE: Final = 10_000
REFILL_PER_SECOND: Final = 1_000

#: PING, PRIORITY, GOAWAY, an unknown frame, an empty DATA frame, DATA on a closed stream.
FRAME: Final = 1
#: SETTINGS, which touch every stream.
SETTINGS: Final = 10
#: A stream that ends in an error of the peer's making (malformed, refused), or that a client resets
#: before it was answered: 500 at once and 50 a second, all the time. A pod that dies resets the
#: tunnels it waits for, 200 at most; "rapid reset" (CVE-2023-44487) is many thousands.
STREAM: Final = 20
#: A stream that a client resets after the answer and before any byte was sent in it: 3,300 at once
#: and 330 a second. Nothing is gained by it that ending the stream would not gain.
UNUSED_STREAM: Final = 3
#: Bytes of a large header block for a point: decoding one of 64 KiB may take milliseconds.
BLOCK_BYTES: Final = 256


class Nuisance:
    """The allowance of one peer. ``clock`` returns seconds and is asked only when it runs out.

    Then it is filled for the time since it ran out last, so a peer that was well-behaved for long
    may spend it twice.
    """

    __slots__ = ("_clock", "_filled_at", "_left")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: float = ALLOWANCE
        self._filled_at = clock()

    def spend(self, points: int, what: str) -> None:
        """Raises H2Error when the allowance is used up; ``what`` was one time too many."""
        self._left -= points
        if self._left >= 0:
            return
        now = self._clock()
        refill = (now - self._filled_at) * REFILL_PER_SECOND
        self._left = min(self._left + refill, ALLOWANCE)
        self._filled_at = now
        if self._left < 0:
            raise H2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many frames of no use, {what} last")
