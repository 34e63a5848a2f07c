"""Points in time as nodenet writes them: RFC 3339, UTC, microseconds, ``Z``."""

from __future__ import annotations

import time
from datetime import UTC, datetime

_NS = 1_000_000_000
_CLOCK_READS = 16
_CLOCK_STEP_NS = 10_000
#: More than two clocks drift apart while somebody looks; less is no reason to move what was shown.
_CLOCK_SET_SECONDS = 1.0


def rfc3339(moment: datetime) -> str:
    """``2026-11-21T10:42:07.118004Z``; ValueError for a datetime without time zone."""
    if moment.tzinfo is None:
        raise ValueError("a point in time needs a time zone")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def rfc3339_ns(unix_ns: int) -> str:
    """The same from nanoseconds since 1970, as `time.time_ns` gives them; cut to microseconds."""
    seconds, rest = divmod(unix_ns, _NS)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 1000:06d}Z"


def now_rfc3339() -> str:
    """This moment."""
    return rfc3339_ns(time.time_ns())


def parse_rfc3339(text: str) -> datetime:
    """The reverse, with a time zone; ValueError when ``text`` is not RFC 3339."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment


class DayTimes:
    """Times of day of the moments of a steady clock, the same whenever they are asked for.

    The distance of the two clocks is measured once, and anew when somebody has set the time: two
    readings are never from the same moment, so each measurement differs by microseconds.
    """

    def __init__(self) -> None:
        self._distance: float | None = None

    def rfc3339(self, moment: float, *, now: float, wall: float) -> str:
        """A moment of the steady clock, in seconds; ``now`` and ``wall`` is what both say now."""
        distance = wall - now
        if self._distance is None or abs(distance - self._distance) > _CLOCK_SET_SECONDS:
            self._distance = distance
        return rfc3339_ns(int((moment + self._distance) * _NS))


def boot_offset_ns() -> int:
    """What to add to a CLOCK_BOOTTIME value of the kernel programs to get Unix time, ns.

    The kernel keeps the two clocks a fixed distance apart until somebody sets the time. The
    distance is measured to some tens of ns and rounded to 10 us, so that the same record has the
    same time in every run.
    """
    low, high = -(1 << 63), 1 << 63
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for _ in range(_CLOCK_READS):
        now = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        # the wall clock was read somewhere between the two
        low, high = max(low, now - after), min(high, now - before)
        before = after
    middle = (low + high) // 2
    return (middle + _CLOCK_STEP_NS // 2) // _CLOCK_STEP_NS * _CLOCK_STEP_NS
