"""The rows of `lab demo`: who calls whom, what is to be proved of it, and what a row says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from nodenet.capture.records import PodRecord
from nodenet.endpoint import format_endpoint
from nodenet.lab.plan import WORKLOAD_PORT, LabPlan, Pod

Side = Literal["out", "in"]
Expected = Literal["captured-out", "captured-in", "untouched"]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's application says of the connection."""

    pod: str
    peer: str
    local: str
    cookie: str
    received: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One connection with one request, as the calling application saw it."""

    cookie: str
    local: str | None
    peer: str | None
    """What getpeername said."""
    bytes_sent: int
    bytes_received: int
    seen: Seen | None
    error: str | None


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the demo; the JSON item of ``flows``."""

    from_: str = msgspec.field(name="from")
    to: str
    family: Literal[4, 6]
    side: Side | None
    captured_by: Literal["ebpf", "iptables", "none"]
    listener: str | None
    orig_dst: str | None
    bytes_sent: int
    bytes_received: int
    peer_seen: str | None
    """ENDPOINT that the application on this side believes it talks to."""
    conn_id: str | None
    expected: Expected
    ok: bool
    why: str | None
    """What is not as expected; None when all is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Who calls whom over which family, and what that means for both."""

    source: Pod
    target: Pod
    family: Literal[4, 6]

    @property
    def destination(self) -> str:
        """ENDPOINT of the target's workload."""
        return format_endpoint(self.target.address(self.family), WORKLOAD_PORT)


class Row(NamedTuple):
    """One thing to prove: a pair, seen from one side."""

    pair: Pair
    side: Side | None


def pairs(plan: LabPlan, chosen: Sequence[tuple[Pod, Pod]] | None = None) -> list[Pair]:
    """Every ordered pair of different pods in every family, or those of the chosen ones."""
    wanted = chosen or [(a, b) for a in plan.pods for b in plan.pods if a is not b]
    return [Pair(source=a, target=b, family=f) for a, b in wanted for f in plan.family.numbers]


def rows(pair: Pair, enrolled: Mapping[str, PodRecord]) -> list[Row]:
    """What to prove of a pair: the captured sides, or that neither end was touched."""
    captured: list[Row] = []
    source, target = (enrolled.get(p.full_name) for p in (pair.source, pair.target))
    if source is not None and source.direction != "in":
        captured.append(Row(pair, "out"))
    if target is not None and target.direction != "out":
        captured.append(Row(pair, "in"))
    return captured or [Row(pair, None)]
