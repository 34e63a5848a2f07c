"""Connections summed up: who, with whom, how many, how much, how much of it not captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from nodenet.conns.connection import Connection
from nodenet.conns.security import Securities, Security
from nodenet.conns.totals import Total

By = Literal["pod", "peer", "edge", "process", "reason"]
GROUPS: Final[tuple[By, ...]] = ("pod", "peer", "edge", "process", "reason")
#: Groups for which the kernel keeps totals; the others are summed up from records.
FROM_TOTALS: Final[frozenset[By]] = frozenset({"pod", "reason"})


class SummaryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One group. What it is not grouped by is None."""

    pod: str | None = None
    peer: str | None = None
    """A pod's name or an address; outbound with the port, inbound without (it means nothing)."""
    process: str | None = None
    reason: str | None = None
    rule: str | None = None
    open: int = 0
    """Connections open now."""
    new: int = 0
    """Connections opened in the time summed up."""
    closed: int = 0
    failed: int = 0
    """Never established, or refused by the capture."""
    bytes_sent: int = 0
    bytes_received: int = 0
    plain_percent: float | None = None
    """Part of the bytes that was not captured, or captured and not secured as far as the proxies
    tell; None when there were none."""
    retransmit_percent: float | None = None
    retransmits: int = 0
    segs_out: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What ``conn summary -j`` prints."""

    ok: bool
    since: str | None
    """RFC 3339; None when no pod is enrolled."""
    by: By
    rows: list[SummaryRow]
    totals: SummaryRow
    evicted: int
    """Closed connections that are missing from these sums, because the kernel keeps only some."""
    events_lost: int
    plain_known: bool = False
    """Whether the proxies' word covers all captured bytes, so that `SummaryRow.plain_percent` is
    the whole truth."""
    security_unknown: int = 0
    """Captured connections left out by ``--security``, because no proxy knows them."""


class _Sum:
    """A row being added up."""

    __slots__ = (
        "closed", "failed", "new", "open", "plain", "received", "retransmits", "segs_out", "sent",
        "unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        self.open = self.new = self.closed = self.failed = 0
        self.sent = self.received = self.retransmits = self.segs_out = 0
        self.plain = self.unknown = 0.0

    def add(self, source: Connection | Total, plain: float, unknown: float) -> None:
        """Bytes and segments of a connection or of a total, and which parts are plain, and not
        known to be."""
        sent, received = source.bytes_sent or 0, source.bytes_received or 0
        self.sent += sent
        self.received += received
        self.plain += plain * (sent + received)
        self.unknown += unknown * (sent + received)
        self.retransmits += source.retransmits or 0
        self.segs_out += source.segs_out or 0

    def merge(self, other: _Sum) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def row(self, key: dict[str, str | None]) -> SummaryRow:
        moved = self.sent + self.received
        return SummaryRow(
            **key,
            open=self.open,
            new=self.new,
            closed=self.closed,
            failed=self.failed,
            bytes_sent=self.sent,
            bytes_received=self.received,
            plain_percent=round(100 * self.plain / moved, 2) if moved else None,
            retransmit_percent=(
                round(100 * self.retransmits / self.segs_out, 2) if self.segs_out else None
            ),
            retransmits=self.retransmits,
            segs_out=self.segs_out,
        )


def failed(c: Connection) -> bool:
    """Whether a closed connection never was established.

    Without an answer from the peer there is no round trip time either.
    """
    return c.end is not None and (
        c.end_reason in (None, "refused") or (c.end_reason == "timeout" and c.rtt_us is None)
    )


def peer_of(c: Connection) -> str:
    """The peer as groups name it: inbound without the port, which is another one each time."""
    if c.dir == "out":
        return c.peer_label
    return c.peer_name or c.peer.rpartition(":")[0].strip("[]")


def summarise(
    by: By,
    live: Iterable[Connection],
    closed: Iterable[Connection],
    totals: Iterable[Total] | None,
    *,
    since: str | None = None,
    securities: Securities | None = None,
) -> tuple[list[SummaryRow], SummaryRow, bool]:
    """The rows, busiest first, their sum, and whether of all bytes it is known if they were plain.

    With ``totals`` (of the kernel) counts and bytes of closed connections come from there, and
    ``closed`` is not looked at; else from ``closed``. ``since`` (RFC 3339) decides which live
    connections count as new; None: all of them. ``securities`` is the word of the proxies.
    """
    known = securities or Securities()
    key_of, pod_of_total = _KEYS[by], by == "pod"
    sums: dict[tuple[str | None, ...], _Sum] = {}

    def group(key: tuple[str | None, ...]) -> _Sum:
        return sums.setdefault(key, _Sum())

    for c in live:
        one = group(key_of(c))
        one.open += 1
        one.add(c, *_PARTS[known.of(c)])
        if totals is None and (since is None or (c.start or "") >= since):
            one.new += 1
    if totals is None:
        for c in closed:
            one = group(key_of(c))
            one.closed += 1
            one.failed += failed(c)
            one.add(c, *_PARTS[known.of(c)])
            if since is None or (c.start or "") >= since:
                one.new += 1
    totals = None if totals is None else list(totals)
    shares = known.shares(totals or ())
    for total in totals or ():
        key = (total.pod or f"pod:{total.pod_id}",) if pod_of_total else (total.reason, total.rule)
        one = group(key)
        one.new += total.opened
        one.closed += total.closed
        one.failed += total.failed
        one.add(total, *(_PLAIN if total.captured_by == "none" else shares[total.pod]))
    everything = _Sum()
    for one in sums.values():
        everything.merge(one)
    names = _KEY_NAMES[by]
    rows = [one.row(dict(zip(names, key, strict=True))) for key, one in sums.items()]
    rows.sort(
        key=lambda r: (
            -(r.bytes_sent + r.bytes_received),
            -r.open,
            *(getattr(r, name) or "" for name in names),
        )
    )
    return rows, everything.row({}), known.told and not everything.unknown


#: Which parts of a connection's bytes are plain, and not known to be.
_PLAIN: Final = (1.0, 0.0)
_PARTS: Final[dict[Security | None, tuple[float, float]]] = {
    "plain": _PLAIN,
    "mtls": (0.0, 0.0),
    None: (0.0, 1.0),
}
_KEY_NAMES: Final[dict[By, tuple[str, ...]]] = {
    "pod": ("pod",),
    "peer": ("peer",),
    "edge": ("pod", "peer"),
    "process": ("pod", "process"),
    "reason": ("reason", "rule"),
}
_KEYS: Final[dict[By, Callable[[Connection], tuple[str | None, ...]]]] = {
    "pod": lambda c: (c.pod_label,),
    "peer": lambda c: (peer_of(c),),
    "edge": lambda c: (c.pod_label, peer_of(c)),
    "process": lambda c: (c.pod_label, c.comm),
    "reason": lambda c: (c.reason, c.rule),
}
