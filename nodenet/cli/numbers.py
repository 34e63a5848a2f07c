"""Numbers as tables show them: short, right-aligned, with a unit; ``--exact`` prints integers.

Each function takes the value of a JSON key (unit in the key's name) and returns its text. JSON
itself never goes through here.
"""

from __future__ import annotations

from datetime import datetime

from nodenet.times import parse_rfc3339

_BYTE_UNITS = "KMGTPE"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size(value: int | float, exact: bool = False) -> str:
    """Bytes or counts, 1024-based: ``412``, ``12.4K``, ``3.1M``, ``2.0G``."""
    if exact or abs(value) < 1024:
        return str(int(value))
    scaled = float(value)
    for unit in _BYTE_UNITS:
        scaled /= 1024
        # 1023.96 would be rounded to 1024.0: the next unit is the right one then
        if abs(scaled) < 1023.95 or unit == _BYTE_UNITS[-1]:
            break
    return f"{scaled:.1f}{unit}"


def count(value: int | float, exact: bool = False) -> str:
    """A plain number of things, in full up to five digits, then as `size`."""
    return str(int(value)) if exact or abs(value) < 100_000 else size(value)


def rate(value: int | float, exact: bool = False) -> str:
    """Per second: ``412/s``, ``12.4K/s``."""
    return f"{size(value, exact)}/s"


def percent(value: float, exact: bool = False) -> str:
    """A part of one hundred with one digit: ``0.1``; with two when ``exact``."""
    return f"{value:.2f}" if exact else f"{value:.1f}"


def age(seconds: int | float, exact: bool = False) -> str:
    """``14s``, ``3m12s``, ``2h05m``, ``6d3h``; a time in the future is ``0s``."""
    whole = max(0, int(seconds))
    if exact:
        return str(whole)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR}h"


def microseconds(value: int | float, exact: bool = False) -> str:
    """A round trip or another short time: ``340us``, ``1.1ms``, ``18ms``, ``2.5s``."""
    if exact:
        return str(int(value))
    if value < 999.5:
        return f"{value:.0f}us"
    if value < 9_950:
        return f"{value / 1000:.1f}ms"
    if value < 999_500:
        return f"{value / 1000:.0f}ms"
    return duration(value / 1_000_000)


def milliseconds(value: int | float, exact: bool = False) -> str:
    """As `microseconds`, from milliseconds."""
    return microseconds(value * 1000, exact)


def duration(seconds: float, exact: bool = False) -> str:
    """How long something took: ``19ms``, ``14.2s``, then as `age`."""
    if exact:
        return f"{seconds:.6f}"
    if seconds < 0.9995:
        return microseconds(round(seconds * 1_000_000))
    return f"{seconds:.1f}s" if seconds < 59.95 else age(seconds)


def local_time(moment: str | datetime) -> str:
    """Local date and time with milliseconds, for wide tables: ``2026-11-21 10:42:07.118``."""
    return _local(moment).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def local_clock(moment: str | datetime) -> str:
    """Local time with milliseconds, for event lines: ``10:42:07.118``."""
    return _local(moment).strftime("%H:%M:%S.%f")[:-3]


def _local(moment: str | datetime) -> datetime:
    return (parse_rfc3339(moment) if isinstance(moment, str) else moment).astimezone()
