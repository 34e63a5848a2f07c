"""RFC 3339 with microseconds."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet import times


def test_rfc3339() -> None:
    moment = datetime(2026, 11, 21, 10, 42, 7, 118_004, UTC)
    assert times.rfc3339(moment) == "2026-11-21T10:42:07.118004Z"
    east = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert times.rfc3339(east) == "2026-11-21T10:42:07.118004Z"
    whole = datetime(2026, 1, 2, tzinfo=UTC)
    assert times.rfc3339(whole) == "2026-01-02T00:00:00.000000Z"


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        times.rfc3339(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="time zone"):
        times.parse_rfc3339("2026-01-01T00:00:00")
    with pytest.raises(ValueError, match="."):
        times.parse_rfc3339("yesterday")


@given(st.integers(0, 4_000_000_000 * 10**9))
def test_nanoseconds_and_back(unix_ns: int) -> None:
    text = times.rfc3339_ns(unix_ns)
    assert len(text) == 27
    back = times.parse_rfc3339(text) - datetime(1970, 1, 1, tzinfo=UTC)
    assert back // timedelta(microseconds=1) == unix_ns // 1000


def test_boot_time_is_moved_to_unix_time() -> None:
    before = time.time_ns()
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + times.boot_offset_ns()
    assert before - 10**9 < now < time.time_ns() + 10**9
    assert times.parse_rfc3339(times.now_rfc3339()).timestamp() >= before / 1e9 - 1


def test_the_distance_of_the_clocks_is_the_same_each_time() -> None:
    """A record has one start, whichever run prints it."""
    # a step of 10 us: a clock right at its edge may fall to either side
    assert len({times.boot_offset_ns() for _ in range(50)}) <= 2


def test_a_moment_of_a_steady_clock_has_one_time_of_day() -> None:
    times_of_day = times.DayTimes()
    first = times_of_day.rfc3339(10.0, now=100.0, wall=1090.0)
    assert first == "1970-01-01T00:16:40.000000Z"
    later = times_of_day.rfc3339(10.0, now=200.0, wall=1190.000_007)
    assert later == first, "the clocks are never read at the same moment"
    assert times_of_day.rfc3339(10.5, now=200.0, wall=1190.0) == "1970-01-01T00:16:40.500000Z"
    moved = times_of_day.rfc3339(10.0, now=300.0, wall=1301.5)
    assert moved == "1970-01-01T00:16:51.500000Z", "somebody has set the time"
