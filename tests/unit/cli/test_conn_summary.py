"""The table of conn summary."""

from __future__ import annotations

import pytest
from msgspec import structs

from nodenet.cli.conn_summary import render
from nodenet.cli.style import Style
from nodenet.conns.summary import GROUPS, By, Summary, SummaryRow

ROW = SummaryRow(
    pod="shop/cart", peer="shop/db:5432", process="python3", reason="captured", rule="O8",
    open=3, new=9, closed=6, failed=1, bytes_sent=12_702, bytes_received=0, plain_percent=12.5,
    retransmit_percent=0.1, retransmits=1, segs_out=1000,
)  # fmt: skip


def _report(by: By, **changes: int) -> Summary:
    return Summary(
        ok=True, since="2026-01-31T00:00:00.000000Z", by=by, rows=[ROW], totals=ROW,
        evicted=changes.get("evicted", 0), events_lost=changes.get("events_lost", 0),
    )  # fmt: skip


@pytest.mark.parametrize("by", GROUPS)
def test_columns(by: By) -> None:
    groups = {
        "pod": "POD", "peer": "PEER", "edge": "POD PEER", "process": "POD PROCESS",
        "reason": "REASON RULE",
    }  # fmt: skip
    header, row, total, note = render(_report(by), Style()).splitlines()
    numbers = "OPEN NEW CLOSED FAILED SENT RECV PLAIN* RETR%"
    assert header.split() == f"{groups[by]} {numbers}".split()
    assert row.split()[-8:] == ["3", "9", "6", "1", "12.4K", "0", "12.5%", "0.1"]
    assert total.startswith("3 open, 9 new, 6 closed, 1 failed, 12.4K sent, 0 received since 2026-")
    assert note.startswith("* at least")


def test_with_the_proxies_word_there_is_no_star() -> None:
    report = structs.replace(_report("pod"), plain_known=True)
    header, *rest = render(report, Style()).splitlines()
    assert "PLAIN  " in header
    assert len(rest) == 2


def test_what_is_missing_is_said() -> None:
    text = render(_report("peer", evicted=7, events_lost=2), Style())
    assert text.splitlines()[-2:] == [
        "7 closed connections are missing: no longer kept",
        "2 events were lost",
    ]


def test_what_security_left_out_is_said() -> None:
    report = structs.replace(_report("process"), plain_known=True, security_unknown=3)
    assert render(report, Style()).splitlines()[-1].startswith("3 captured connections are left")
