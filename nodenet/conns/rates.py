"""What connections do per second: the difference between two looks at the kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from nodenet.conns.connection import Connection
from nodenet.conns.summary import peer_of

Group = Literal["pod", "peer", "conn"]
GROUPS: Final[tuple[Group, ...]] = ("pod", "peer", "conn")


class RateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One group of connections in one round."""

    time: str
    pod: str | None
    peer: str | None
    """None in a group of all peers of a pod."""
    dir: Literal["out", "in"] | None
    id: str | None
    """The connection, in groups of one."""
    connections: int
    """Open at the end of the round."""
    opened_per_s: float
    rate_bytes_sent_per_s: float
    rate_bytes_received_per_s: float
    rtt_us: int | None
    """Mean of the open connections'."""
    retransmits_per_s: float


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Connections at one moment, with those that closed since the look before."""

    boot_ns: int
    """CLOCK_BOOTTIME of the moment."""
    live: dict[str, Connection]
    """By id."""
    closed: list[Connection]


def look(
    live: Iterable[Connection], closed: Iterable[Connection], *, boot_ns: int | None = None
) -> Look:
    """A look made of what a reader returned just now."""
    return Look(
        boot_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) if boot_ns is None else boot_ns,
        live={c.id: c for c in live},
        closed=list(closed),
    )


class _Sum:
    __slots__ = ("connections", "opened", "received", "retransmits", "rtt_count", "rtt_us", "sent")

    def __init__(self) -> None:
        self.connections = self.opened = self.sent = self.received = self.retransmits = 0
        self.rtt_us = self.rtt_count = 0


def rates(before: Look, now: Look, by: Group, *, time_of: Callable[[int], str]) -> list[RateRow]:
    """Rows of groups, the most bytes per second first.

    A connection that was not there ``before`` counts in full if it began since, else (a pod that
    was enrolled meanwhile) not at all. ``time_of`` is `Decoder.time` of the rows' decoder.
    """
    began, moment = time_of(before.boot_ns), time_of(now.boot_ns)
    seconds = max((now.boot_ns - before.boot_ns) / 1e9, 1e-3)
    sums: dict[tuple[str | None, str | None, Literal["out", "in"] | None, str | None], _Sum] = {}
    ended = [c for c in now.closed if (c.end or "") >= began and c.id not in now.live]
    for c in (*now.live.values(), *ended):
        one = sums.setdefault(_key(c, by), _Sum())
        if c.end is None:
            one.connections += 1
            if c.rtt_us is not None:
                one.rtt_us += c.rtt_us
                one.rtt_count += 1
        old = before.live.get(c.id)
        fresh = old is None and (c.start or "") >= began
        if fresh:
            one.opened += 1
        if old is not None or fresh:
            one.sent += _grown(c.bytes_sent, old.bytes_sent if old else 0)
            one.received += _grown(c.bytes_received, old.bytes_received if old else 0)
            one.retransmits += _grown(c.retransmits, old.retransmits if old else 0)
    rows = [
        RateRow(
            time=moment,
            pod=pod,
            peer=peer,
            dir=direction,
            id=ident,
            connections=one.connections,
            opened_per_s=round(one.opened / seconds, 3),
            rate_bytes_sent_per_s=round(one.sent / seconds, 1),
            rate_bytes_received_per_s=round(one.received / seconds, 1),
            rtt_us=one.rtt_us // one.rtt_count if one.rtt_count else None,
            retransmits_per_s=round(one.retransmits / seconds, 3),
        )
        for (pod, peer, direction, ident), one in sums.items()
    ]
    rows.sort(key=lambda r: (-busy(r), -r.connections, r.pod or "", r.peer or "", r.id or ""))
    return rows


def busy(row: RateRow) -> float:
    """Bytes per second both ways."""
    return row.rate_bytes_sent_per_s + row.rate_bytes_received_per_s


def _key(
    c: Connection, by: Group
) -> tuple[str | None, str | None, Literal["out", "in"] | None, str | None]:
    if by == "pod":
        return c.pod_label, None, c.dir, None
    if by == "peer":
        return c.pod_label, peer_of(c), c.dir, None
    return c.pod_label, c.peer_label, c.dir, c.id


def _grown(now: int | None, before: int | None) -> int:
    return max((now or 0) - (before or 0), 0)
