"""conn top: what the keys do, what is on the screen."""

from __future__ import annotations

import pytest

from nodenet.cli.conn_top import SORTS, Totals, View, page, shown_rows
from nodenet.cli.style import Style
from nodenet.conns.rates import RateRow


def _row(pod: str, peer: str | None, sent: float, rtt: int | None = None) -> RateRow:
    return RateRow(
        time="2026-01-31T00:00:00.000000Z",
        pod=pod,
        peer=peer,
        dir="out",
        id="3a01",
        connections=3,
        opened_per_s=1.0,
        rate_bytes_sent_per_s=sent,
        rate_bytes_received_per_s=0.0,
        rtt_us=rtt,
        retransmits_per_s=0.0,
    )


ROWS = [_row("shop/cart", "shop/db:5432", 2048.0), _row("shop/web", "10.0.0.1:80", 10.0, 340)]
TOTALS = Totals(live=6, events_lost=0, evicted=0, over_limit=0)


def test_sorting_and_the_pattern() -> None:
    assert shown_rows(ROWS, View(by="peer")) == ROWS
    assert shown_rows(ROWS, View(by="peer", sort="-rtt_us")) == ROWS[::-1]
    assert shown_rows(ROWS, View(by="peer", sort="rate_bytes_sent_per_s")) == ROWS[::-1]
    assert shown_rows(ROWS, View(by="peer", pattern="db")) == ROWS[:1]
    assert shown_rows(ROWS, View(by="peer"), limit=1) == ROWS[:1]


def test_keys() -> None:
    view = View(by="peer")
    assert view.press("g") and view.by == "conn"
    assert view.press("g") and view.by == "pod"
    assert view.press("g") and view.by == "peer"
    for expected in (*SORTS[1:], SORTS[0]):
        assert view.press("s") and view.sort == expected
    assert view.press("p") and view.paused
    assert view.press("p") and not view.paused
    assert not view.press("q")


def test_typing_a_pattern() -> None:
    view = View(by="peer")
    for key in "/dqb":
        assert view.press(key)
    assert view.typing and view.pattern == "dqb"
    view.press("\x7f")
    view.press("\r")
    assert not view.typing and view.pattern == "dq"
    view.press("\x1b")
    assert view.pattern == ""
    for key in ("/", "x", "\x1b"):
        view.press(key)
    assert not view.typing and view.pattern == ""


def test_an_own_sort_key_is_left_by_the_first_press() -> None:
    view = View(by="peer", sort="pod")
    view.press("s")
    assert view.sort == ""


@pytest.mark.parametrize(
    ("by", "header"),
    [
        ("peer", "POD PEER DIR CONNS NEW/s OUT/s IN/s RTT RETR/s"),
        ("pod", "POD DIR CONNS NEW/s OUT/s IN/s RTT RETR/s"),
        ("conn", "ID POD PEER DIR CONNS NEW/s OUT/s IN/s RTT RETR/s"),
    ],
)
def test_a_page_as_text(by: str, header: str) -> None:
    head, titles, first, second = page(ROWS, TOTALS, View(by=by), Style()).splitlines()
    assert head == ("6 connections  out 2.0K/s  in 0/s  new 2.0/s  events lost 0  evicted 0")
    assert titles.split() == header.split()
    assert "2.0K" in first and second.split()[-2] == "340us"


def test_a_screen_is_as_high_as_the_terminal() -> None:
    many = ROWS * 50
    text = page(many, TOTALS, View(by="peer", paused=True, pattern="a"), Style(width=80), 24)
    lines = text.rstrip("\n").splitlines()
    assert len(lines) <= 24
    assert "s sort  / filter  p pause  g group  q quit" in lines[1]
    assert "paused, /a" in lines[1]


def test_what_was_not_recorded_is_said() -> None:
    totals = Totals(live=6, events_lost=3, evicted=4, over_limit=5)
    head = page([], totals, View(by="peer"), Style()).splitlines()[0]
    assert head.endswith("events lost 3  evicted 4  not recorded 5")
