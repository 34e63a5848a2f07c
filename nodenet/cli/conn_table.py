"""How connections look in a table: columns for open and for closed ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nodenet.cli import numbers
from nodenet.cli.tables import Column, Elide
from nodenet.times import parse_rfc3339

if TYPE_CHECKING:
    from nodenet.conns.connection import Connection


def state_cell(c: Connection) -> str:
    """As `ss` abbreviates it."""
    from nodenet.conns.tcp import state_short

    return state_short(c.state)


def process_cell(c: Connection) -> str | None:
    """``python3[4711]``, and why the connection was not captured: ``(excluded-port)``."""
    reason = f"({c.reason})" if c.captured_by == "none" and c.reason else None
    return " ".join(part for part in (c.process, reason) if part) or None


def end_cell(c: Connection) -> str | None:
    """``fin peer``: how a connection ended, and which side did it."""
    return " ".join(part for part in (c.end_reason, c.end_by) if part) or None


def age_cell(c: Connection) -> float | None:
    """Seconds from the start to the end, or until now."""
    if c.duration_us is not None:
        return c.duration_us / 1_000_000
    if c.start is None:
        return None
    return (datetime.now(UTC) - parse_rfc3339(c.start)).total_seconds()


def _started(value: str, _exact: bool) -> str:
    return numbers.local_time(value)


def columns(*, closed: bool = False, raw: bool = False) -> tuple[Column, ...]:
    """The columns of `conn list`. ``raw``: peers by address although their name is known."""
    peer: Callable[[Connection], str] = (lambda c: c.peer) if raw else (lambda c: c.peer_label)
    return (
        Column("ID", "id", max=16),
        Column("POD", "pod", max=32, elide=Elide.MIDDLE, value=lambda c: c.pod_label),
        Column("DIR", "dir"),
        Column("LOCAL", "local", max=47),
        Column("PEER", "remote", max=47, value=peer, keep=True),
        Column("END", "end_reason", max=12, value=end_cell)
        if closed
        else Column("STATE", "state", max=10, value=state_cell),
        Column("VIA", "captured_by", max=8),
        Column("SENT", "bytes_sent", numbers.size, right=True),
        Column("RECV", "bytes_received", numbers.size, right=True),
        Column("RTT", "rtt_us", numbers.microseconds, right=True),
        Column("RETR", "retransmits", numbers.count, right=True),
        Column("LASTED" if closed else "AGE", "duration_us", numbers.age, right=True,
               value=age_cell),
        Column("PROCESS", "comm", max=24, elide=Elide.END, value=process_cell),
        Column("ORIGINAL-DST", "orig_dst", wide=True),
        Column("REASON", "reason", wide=True),
        Column("CWND", "cwnd", numbers.count, right=True, wide=True),
        Column("MINRTT", "rtt_min_us", numbers.microseconds, right=True, wide=True),
        Column("PKTS-OUT", "segs_out", numbers.count, right=True, wide=True),
        Column("PKTS-IN", "segs_in", numbers.count, right=True, wide=True),
        Column("NETNS", "netns_cookie", wide=True),
        Column("CGROUP", "cgroup", wide=True),
        Column("STARTED", "start", _started, wide=True),
    )  # fmt: skip
