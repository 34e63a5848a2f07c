"""`conn summary`: the report and its table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from nodenet.cli import numbers
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, Elide, render_table
from nodenet.errors import NotFound

if TYPE_CHECKING:
    from nodenet.cli.globals import Globals
    from nodenet.conns.filters import Filter
    from nodenet.conns.reader import ConnReader
    from nodenet.conns.security import Security
    from nodenet.conns.summary import By, Summary


def summary_of(
    g: Globals, reader: ConnReader, wanted: Filter, by: str, security: str | None
) -> Summary:
    """What `nodenet.conns.query.summary` makes of it, for now, with the proxies' word."""
    from nodenet.cli.conn_proxy import securities
    from nodenet.conns.query import summary

    told = securities(g)
    if security == "mtls" and not told.told:
        raise NotFound(
            "no ztunnel here to tell what has mTLS", hint="start it: nodenet ztunnel run"
        )
    return summary(
        reader,
        wanted,
        cast("By", by),
        now_ns=time.time_ns(),
        securities=told,
        only=cast("Security | None", security),
    )


_GROUP_COLUMNS = {
    "pod": Column("POD", "pod", max=32, elide=Elide.MIDDLE),
    "peer": Column("PEER", "peer", max=47),
    "process": Column("PROCESS", "process", max=24, elide=Elide.END),
    "reason": Column("REASON", "reason"),
    "rule": Column("RULE", "rule"),
}
_GROUPS = {
    "pod": ("pod",),
    "peer": ("peer",),
    "edge": ("pod", "peer"),
    "process": ("pod", "process"),
    "reason": ("reason", "rule"),
}


def _numbers(plain: str) -> tuple[Column, ...]:
    return (
        Column("OPEN", "open", numbers.count, right=True),
        Column("NEW", "new", numbers.count, right=True),
        Column("CLOSED", "closed", numbers.count, right=True),
        Column("FAILED", "failed", numbers.count, right=True),
        Column("SENT", "bytes_sent", numbers.size, right=True),
        Column("RECV", "bytes_received", numbers.size, right=True),
        Column(plain, "plain_percent", lambda v, exact: numbers.percent(v, exact) + "%",
               right=True),
        Column("RETR%", "retransmit_percent", numbers.percent, right=True),
    )  # fmt: skip


def render(report: Summary, style: Style) -> str:
    """The table, its totals, and what is missing from it."""
    columns = [_GROUP_COLUMNS[name] for name in _GROUPS[report.by]]
    # where the proxies' word is missing, or covers not all
    figures = _numbers("PLAIN" if report.plain_known else "PLAIN*")
    table = render_table(report.rows, (*columns, *figures), style)
    totals = report.totals
    since = numbers.local_time(report.since)[:19] if report.since else "-"
    lines = [
        f"{totals.open} open, {totals.new} new, {totals.closed} closed, {totals.failed} failed, "
        f"{numbers.size(totals.bytes_sent, style.exact)} sent, "
        f"{numbers.size(totals.bytes_received, style.exact)} received since {since}",
    ]
    if not report.plain_known:
        lines.append("* at least; of some captured bytes no ztunnel tells whether they had mTLS")
    if report.security_unknown:
        lines.append(
            f"{report.security_unknown} captured connections are left out: no ztunnel knows them"
        )
    if report.evicted:
        lines.append(f"{report.evicted} closed connections are missing: no longer kept")
    if report.events_lost:
        lines.append(f"{report.events_lost} events were lost")
    return table + "\n".join(lines) + "\n"
