"""Sums: from records, from the kernel's totals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodenet.abi import Direction, EventKind, Reason
from nodenet.conns.connection import Connection
from nodenet.conns.security import Securities
from nodenet.conns.summary import failed, peer_of, summarise
from nodenet.conns.totals import Total

Record = Callable[..., bytes]
Rows = Callable[..., list[Connection]]


@pytest.fixture
def live(rows: Rows, record: Record) -> list[Connection]:
    """One captured outbound and one plain inbound connection."""
    inbound = record(
        cookie=2, dir=Direction.IN, netns=42, local="10.42.1.9", local_port=5432,
        remote="10.42.1.7", remote_port=40110, orig=b"", via=0, reason=Reason.DIRECTION_OFF,
        bytes_sent=100, bytes_received=200, retransmits=0, segs_out=10,
    )  # fmt: skip
    return rows(record(bytes_sent=300, bytes_received=600, retransmits=3), inbound)


@pytest.fixture
def closed(rows: Rows, record: Record) -> list[Connection]:
    """One that was fine and one that nobody answered."""
    ended = {"kind": EventKind.CLOSED, "state": 7}
    return rows(
        record(cookie=3, old_state=9, bytes_sent=1000, bytes_received=0, **ended),
        record(cookie=4, old_state=2, err=110, srtt_us=0, bytes_sent=0, bytes_received=0, **ended),
    )


def test_by_pod_from_records(live: list[Connection], closed: list[Connection]) -> None:
    rows, totals, _ = summarise("pod", live, closed, None)
    cart, db = rows
    assert (cart.pod, cart.open, cart.new, cart.closed, cart.failed) == (
        "shop/cart-7d9f6b", 1, 3, 2, 1,
    )  # fmt: skip
    assert (cart.bytes_sent, cart.bytes_received) == (1300, 600)
    assert (cart.plain_percent, db.plain_percent) == (0.0, 100.0)
    assert (totals.open, totals.new, totals.bytes_sent) == (2, 4, 1400)
    assert totals.plain_percent == round(100 * 300 / 2200, 2)
    assert totals.pod is None


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("peer", [{"peer": "shop/db-1:5432"}, {"peer": "shop/cart-7d9f6b"}]),
        (
            "edge",
            [
                {"pod": "shop/cart-7d9f6b", "peer": "shop/db-1:5432"},
                {"pod": "shop/db-1", "peer": "shop/cart-7d9f6b"},
            ],
        ),
        (
            "process",
            [
                {"pod": "shop/cart-7d9f6b", "process": "python3"},
                {"pod": "shop/db-1", "process": "python3"},
            ],
        ),
        (
            "reason",
            [{"reason": "captured", "rule": "O8"}, {"reason": "direction-off", "rule": "I3"}],
        ),
    ],
)
def test_groups(live: list[Connection], by: str, keys: list[dict[str, str]]) -> None:
    rows, _, _ = summarise(by, live, [], None)  # type: ignore[arg-type]
    assert [{k: getattr(row, k) for k in keys[0]} for row in rows] == keys


def test_since_decides_what_is_new(live: list[Connection], closed: list[Connection]) -> None:
    rows, _, _ = summarise("pod", live, closed, None, since="2026-02-01T00:00:00.000000Z")
    assert [(r.open, r.new, r.closed) for r in rows] == [(1, 0, 2), (1, 0, 0)]


def test_the_kernels_totals_replace_closed_records(live: list[Connection]) -> None:
    total = Total(
        pod="shop/cart-7d9f6b", pod_id=41, dir="out", reason="captured", rule="O8",
        captured_by="ebpf", opened=50, closed=49, failed=7, bytes_sent=9000, bytes_received=1000,
        retransmits=1, segs_out=70,
    )  # fmt: skip
    gone = Total(
        pod=None, pod_id=9, dir="out", reason="proxy-down", rule="O7", captured_by="none",
        opened=0, closed=0, failed=4, bytes_sent=0, bytes_received=0, retransmits=0, segs_out=0,
    )  # fmt: skip
    rows, totals, _ = summarise("pod", live, [], [total, gone])
    assert [(r.pod, r.open, r.new, r.closed, r.failed) for r in rows] == [
        ("shop/cart-7d9f6b", 1, 50, 49, 7),
        ("shop/db-1", 1, 0, 0, 0),
        ("pod:9", 0, 0, 0, 4),
    ]
    assert rows[0].bytes_sent == 9300
    assert (rows[2].plain_percent, rows[2].retransmit_percent) == (None, None)
    assert totals.failed == 11
    by_reason, _, _ = summarise("reason", live, [], [total, gone])
    assert [(r.reason, r.failed) for r in by_reason] == [
        ("captured", 7), ("direction-off", 0), ("proxy-down", 4),
    ]  # fmt: skip


def test_an_inbound_peer_has_no_port(live: list[Connection], rows: Rows, record: Record) -> None:
    (unnamed,) = rows(
        record(dir=Direction.IN, remote="2001:db8::9", remote_port=1234, orig=b"", family=10)
    )
    assert [peer_of(c) for c in (*live, unnamed)] == [
        "shop/db-1:5432", "shop/cart-7d9f6b", "2001:db8::9",
    ]  # fmt: skip


def test_what_failed(live: list[Connection], closed: list[Connection]) -> None:
    assert [failed(c) for c in (*live, *closed)] == [False, False, False, True]


def test_the_proxies_word_tells_what_was_plain(
    live: list[Connection], closed: list[Connection]
) -> None:
    told = Securities()
    # the open one of cart has mTLS, of its closed ones only one is known
    told.add([("shop/cart-7d9f6b", "out", live[0].local, "plain")], {})
    rows, _, known = summarise("pod", live, closed, None, securities=told)
    assert (rows[0].plain_percent, known) == (100.0, True)
    told.add([("shop/cart-7d9f6b", "out", live[0].local, "mtls")], {})
    rows, _, known = summarise("pod", live, closed, None, securities=told)
    assert (rows[0].plain_percent, rows[1].plain_percent, known) == (0.0, 100.0, True)
    assert summarise("pod", live, closed, None)[2] is False


def test_totals_are_split_as_the_proxies_counted(live: list[Connection]) -> None:
    total = Total(
        pod="shop/cart-7d9f6b", pod_id=41, dir="out", reason="captured", rule="O8",
        captured_by="ebpf", opened=2, closed=2, failed=0, bytes_sent=9000, bytes_received=1000,
        retransmits=0, segs_out=1,
    )  # fmt: skip
    told = Securities()
    told.add([("shop/cart-7d9f6b", "out", live[0].local, "mtls")], {total.pod or "": (7500, 2500)})
    rows, _, known = summarise("pod", live, [], [total], securities=told)
    assert (rows[0].plain_percent, known) == (round(100 * 2500 / 10_900, 2), True)
    # a proxy that began later knows half of it
    later = Securities()
    later.add([], {total.pod or "": (5000, 0)})
    rows, _, known = summarise("pod", [], [], [total], securities=later)
    assert (rows[0].plain_percent, known) == (0.0, False)
