"""Sums the kernel keeps: totals of each pod, decisions taken, and what was lost on the way."""

from __future__ import annotations

import struct
from typing import Final, Literal

import msgspec

from nodenet import abi
from nodenet.abi import Direction, Live, Reason, Stat, Via
from nodenet.conns.decode import reason_texts
from nodenet.conns.names import Names
from nodenet.kernel.maps import Map

_AGG_KEY: Final = struct.Struct("<IBBBx")
_DIRECTIONS: Final[dict[int, Literal["out", "in"]]] = {Direction.OUT: "out", Direction.IN: "in"}
_VIAS: Final[dict[int, Literal["ebpf", "iptables"]]] = {
    Via.EBPF: "ebpf",
    Via.IPTABLES: "iptables",
}


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of connection of a pod sums up to since the enrolment.

    The proxy's own sockets are not counted: each connection has one end that is the pod's.
    """

    pod: str | None
    pod_id: int
    dir: Literal["out", "in"]
    reason: str | None
    rule: str | None
    captured_by: Literal["ebpf", "iptables", "none"]
    opened: int
    closed: int
    failed: int
    """Never established, or refused by the capture."""
    bytes_sent: int
    """Payload of those that have closed, as all that follow."""
    bytes_received: int
    retransmits: int
    segs_out: int


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    """How often one row of the decision order fired on this node."""

    dir: Literal["out", "in"]
    reason: str
    rule: str | None
    count: int


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of an instance since it was loaded."""

    decisions: tuple[Decisions, ...]
    live: int
    """Connections recorded now, the proxy's own not counted."""
    closed: int
    """Connections that have closed, the proxy's own too."""
    closed_kept: int
    """How many of those the kernel still has the record of."""
    evicted: int
    """How many it has no more."""
    events_lost: int
    """Events that found the ring buffer full."""
    no_storage: int
    no_original: int
    listener_failed: int
    assign_failed: int
    over_limit: int
    """Connections not recorded, because the bound of recorded ones was reached."""
    agg_full: int


def read_totals(agg: Map, names: Names) -> list[Total]:
    """Every total, by pod, direction and reason."""
    found: list[Total] = []
    for key, values in agg.items_percpu():
        pod_id, direction, number, via = _AGG_KEY.unpack(key)
        sums = [sum(column) for column in zip(*map(abi.AGG.struct.unpack, values), strict=True)]
        reason, rule = reason_texts(direction, number)
        record = names.by_pod_id.get(pod_id)
        opened, closed, failed, sent, received, retransmits, segs_out = sums
        found.append(
            Total(
                pod=record.name if record else None,
                pod_id=pod_id,
                dir=_DIRECTIONS.get(direction, "out"),
                reason=reason,
                rule=rule,
                captured_by=_VIAS.get(via, "none"),
                opened=opened,
                closed=closed,
                failed=failed,
                bytes_sent=sent,
                bytes_received=received,
                retransmits=retransmits,
                segs_out=segs_out,
            )
        )
    return sorted(
        found, key=lambda t: (t.pod or "", t.pod_id, t.dir, t.reason or "", t.captured_by)
    )


def read_stat(stat: Map) -> list[int]:
    """The ``stat`` array, summed over the CPUs, by index."""
    counts = [0] * abi.STAT_MAX
    for key, values in stat.items_percpu():
        (index,) = abi.INDEX_KEY.struct.unpack(key)
        if index < len(counts):
            counts[index] = sum(int.from_bytes(value, "little") for value in values)
    return counts


def read_lost(stat: Map) -> int:
    """The count of lost events alone, in one system call."""
    values = stat.lookup_percpu(abi.INDEX_KEY.pack(index=Stat.EVENTS_LOST)) or []
    return sum(int.from_bytes(value, "little") for value in values)


def read_counters(stat: Map, live: Map) -> Counters:
    """All of `Counters`. The maps change meanwhile, so the parts fit only nearly."""
    counts = read_stat(stat)
    decisions: list[Decisions] = []
    for direction, base in ((Direction.OUT, 0), (Direction.IN, Stat.IN)):
        for reason in Reason:
            count = counts[base + reason]
            if count and reason is not Reason.NONE:
                decisions.append(
                    Decisions(
                        dir=_DIRECTIONS[direction],
                        reason=reason.text,
                        rule=abi.rule(direction, reason),
                        count=count,
                    )
                )
    now, closed = (
        int.from_bytes(live.lookup(abi.INDEX_KEY.pack(index=index)) or b"", "little")
        for index in (Live.NOW, Live.CLOSED)
    )
    return Counters(
        decisions=tuple(decisions),
        live=now,
        closed=closed,
        closed_kept=min(closed, abi.CLOSED_KEPT),
        evicted=max(closed - abi.CLOSED_KEPT, 0),
        events_lost=counts[Stat.EVENTS_LOST],
        no_storage=counts[Stat.NO_STORAGE],
        no_original=counts[Stat.NO_ORIGINAL],
        listener_failed=counts[Stat.LISTENER_FAILED],
        assign_failed=counts[Stat.ASSIGN_FAILED],
        over_limit=counts[Stat.OVER_LIMIT],
        agg_full=counts[Stat.AGG_FULL],
    )
