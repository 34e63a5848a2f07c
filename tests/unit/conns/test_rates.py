"""Rates from two looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodenet.abi import EventKind
from nodenet.conns.connection import Connection
from nodenet.conns.rates import look, rates
from nodenet.times import rfc3339_ns

Record = Callable[..., bytes]
Rows = Callable[..., list[Connection]]
#: Unix time of boot, as the fixtures of this directory have it.
BOOT_NS = 1_769_817_600 * 1_000_000_000


def _time(boot_ns: int) -> str:
    return rfc3339_ns(BOOT_NS + boot_ns)


@pytest.mark.parametrize("by", ["pod", "peer", "conn"])
def test_bytes_and_connections_per_second(rows: Rows, record: Record, by: str) -> None:
    """One goes on, one is new, one closed in between, one lived and died in between."""
    second = 1_000_000_000
    first = rows(
        record(cookie=1, bytes_sent=1000, bytes_received=10),
        record(cookie=2, bytes_sent=500, bytes_received=0),
    )
    before = look(first, [], boot_ns=10 * second)
    live = rows(
        record(cookie=1, bytes_sent=3000, bytes_received=10, srtt_us=200, retransmits=4),
        record(cookie=3, bytes_sent=70, bytes_received=0, start_ns=11 * second, srtt_us=400),
    )
    ended = {"kind": EventKind.CLOSED, "state": 7, "old_state": 9, "end_ns": 11 * second}
    closed = rows(
        record(cookie=2, bytes_sent=900, bytes_received=0, **ended),
        record(cookie=4, bytes_sent=5, bytes_received=0, **{**ended, "start_ns": 10 * second + 1}),
    )
    now = look(live, closed, boot_ns=12 * second)
    found = rates(before, now, by, time_of=_time)  # type: ignore[arg-type]
    if by != "conn":
        (row,) = found
        assert row.connections == 2
        # 2000 of the first, 400 of the second, 70 and 5 of the new ones, in two seconds
        assert row.rate_bytes_sent_per_s == (2000 + 400 + 70 + 5) / 2
        assert row.opened_per_s == 1.0
        assert row.rtt_us == 300
        assert row.retransmits_per_s == (2 + 2 + 2) / 2
        assert row.time == "2026-01-31T00:00:12.000000Z"
        assert (row.pod, row.id) == ("shop/cart-7d9f6b", None)
        assert row.peer == (None if by == "pod" else "shop/db-1:5432")
    else:
        assert [(r.id, r.rate_bytes_sent_per_s) for r in found] == [
            ("1", 1000.0), ("2", 200.0), ("3", 35.0), ("4", 2.5),
        ]  # fmt: skip


def test_a_pod_enrolled_meanwhile_is_no_burst(rows: Rows, record: Record) -> None:
    """Its connections are seen for the first time, but their bytes are old."""
    before = look([], [], boot_ns=10_000_000_000)
    now = look(rows(record(start_ns=1_000_000_000)), [], boot_ns=11_000_000_000)
    (row,) = rates(before, now, "peer", time_of=_time)
    assert (row.connections, row.opened_per_s, row.rate_bytes_sent_per_s) == (1, 0.0, 0.0)


def test_seen_open_and_closed_counts_once(rows: Rows, record: Record) -> None:
    """It closed between the two reads of one look."""
    before = look(rows(record(bytes_sent=0)), [], boot_ns=10_000_000_000)
    closed = record(
        kind=EventKind.CLOSED, state=7, old_state=9, end_ns=11_000_000_000, bytes_sent=100
    )
    now = look(rows(record(bytes_sent=100)), rows(closed), boot_ns=11_000_000_000)
    (row,) = rates(before, now, "peer", time_of=_time)
    assert row.rate_bytes_sent_per_s == 100.0
