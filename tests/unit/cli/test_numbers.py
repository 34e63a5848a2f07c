"""Short forms of numbers, each at the edges of its units."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nodenet.cli import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (412, "412"),
        (1023, "1023"),
        (1024, "1.0K"),
        (12_702, "12.4K"),
        (1_048_000, "1023.4K"),
        (1_048_575, "1.0M"),
        (3_251_000, "3.1M"),
        (2 << 30, "2.0G"),
        (5 << 60, "5.0E"),
        (7000 << 60, "7000.0E"),
        (-2048, "-2.0K"),
    ],
)
def test_size(value: int, text: str) -> None:
    assert numbers.size(value) == text
    assert numbers.size(value, True) == str(value)


def test_count_stays_whole_until_it_is_long() -> None:
    assert numbers.count(1204) == "1204"
    assert numbers.count(99_999) == "99999"
    assert numbers.count(100_000) == "97.7K"
    assert numbers.count(100_000, True) == "100000"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (14, "14s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (192, "3m12s"),
        (3599, "59m59s"),
        (7500, "2h05m"),
        (86_399, "23h59m"),
        (86_400, "1d0h"),
        (529_200, "6d3h"),
    ],
)
def test_age(seconds: float, text: str) -> None:
    assert numbers.age(seconds) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0us"),
        (340, "340us"),
        (999, "999us"),
        (1000, "1.0ms"),
        (1100, "1.1ms"),
        (9949, "9.9ms"),
        (9950, "10ms"),
        (18_000, "18ms"),
        (999_499, "999ms"),
        (999_500, "1.0s"),
        (2_500_000, "2.5s"),
    ],
)
def test_microseconds(us: int, text: str) -> None:
    assert numbers.microseconds(us) == text
    assert numbers.microseconds(us, True) == str(us)


def test_the_micro_sign_is_never_used() -> None:
    assert all(numbers.microseconds(10**n).isascii() for n in range(9))


def test_milliseconds_duration_rate_percent() -> None:
    assert numbers.milliseconds(3.1) == "3.1ms"
    assert numbers.duration(0.44) == "440ms"
    assert numbers.duration(0.018845) == "19ms"
    assert numbers.duration(0.000_7) == "700us"
    assert numbers.duration(0.9996) == "1.0s"
    assert numbers.duration(14.2) == "14.2s"
    assert numbers.duration(59.96) == "59s"  # age cuts, it never rounds up
    assert numbers.duration(192.4) == "3m12s"
    assert numbers.duration(0.25, True) == "0.250000"
    assert numbers.rate(12_702) == "12.4K/s"
    assert numbers.percent(0.126) == "0.1"
    assert numbers.percent(0.126, True) == "0.13"


def test_local_times_agree_with_the_clock_they_come_from() -> None:
    moment = datetime(2026, 11, 21, 10, 42, 7, 118_004, UTC)
    here = moment.astimezone()
    assert numbers.local_clock(moment) == here.strftime("%H:%M:%S") + ".118"
    assert numbers.local_time("2026-11-21T10:42:07.118004Z") == (
        here.strftime("%Y-%m-%d %H:%M:%S") + ".118"
    )
