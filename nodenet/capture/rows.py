"""The rows of the decision order as data: what each asks, and what it means when it fires.

The kernel decides (``bpf/nn_decide.h``); this table explains. ``capture explain``, docs/parity.md
and the tests read it, so that a row has one text. Parity ids (``P1``..``P34``) name the behaviour
of the reference rules that a row keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nodenet.abi import Direction, Reason, rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the decision order."""

    id: str
    question: str
    """Short, as printed by explain."""
    reasons: tuple[Reason, ...]
    meaning: str
    """What happens to the connection when the row fires."""
    parity: tuple[str, ...]


OUT_ROWS: Final = (
    Row(
        id="O1",
        question="not TCP",
        reasons=(Reason.NOT_TCP,),
        meaning="left alone; only DNS over UDP is captured, when the pod asks for it",
        parity=("P21",),
    ),
    Row(
        id="O2",
        question="pod not enrolled, or outbound off",
        reasons=(Reason.NOT_ENROLLED, Reason.DIRECTION_OFF),
        meaning="connects straight to the destination",
        parity=("P29", "P30"),
    ),
    Row(
        id="O3",
        question="proxy's own socket",
        reasons=(Reason.PROXY,),
        meaning="the proxy's sockets are known by its cgroup, never by a mark",
        parity=("P4",),
    ),
    Row(
        id="O4",
        question="loopback",
        reasons=(Reason.LOOPBACK,),
        meaning="127.0.0.0/8, ::1 and the unspecified address stay inside the pod",
        parity=("P5", "P18"),
    ),
    Row(
        id="O5",
        question="own address",
        reasons=(Reason.SELF,),
        meaning="the pod talking to one of its own addresses",
        parity=("P5",),
    ),
    Row(
        id="O6",
        question="excluded",
        reasons=(Reason.EXCLUDED_PORT, Reason.EXCLUDED_CIDR, Reason.PROBE_ADDRESS),
        meaning="excluded by port or CIDR, or a node probe's address",
        parity=("P12",),
    ),
    Row(
        id="O7",
        question="proxy down",
        reasons=(Reason.PROXY_DOWN,),
        meaning="no listener: refused with ECONNREFUSED, or passed with --on-proxy-down open",
        parity=("P26", "P28"),
    ),
    Row(
        id="O8",
        question="captured",
        reasons=(Reason.CAPTURED, Reason.DNS),
        meaning="connect() goes to the proxy, the app sees the address it asked for",
        parity=("P1", "P2", "P3", "P6", "P17", "P19"),
    ),
)

IN_ROWS: Final = (
    Row(
        id="I1",
        question="not TCP, or a look-up by the kernel",
        reasons=(Reason.NOT_TCP, Reason.KERNEL_LOOKUP),
        meaning="left alone",
        parity=("P21",),
    ),
    Row(
        id="I2",
        question="loopback or own address",
        reasons=(Reason.LOOPBACK, Reason.SELF),
        meaning="the pod talking to itself",
        parity=("P5", "P11"),
    ),
    Row(
        id="I3",
        question="pod not enrolled, or inbound off",
        reasons=(Reason.NOT_ENROLLED, Reason.DIRECTION_OFF),
        meaning="goes to the app",
        parity=("P22",),
    ),
    Row(
        id="I4",
        question="HBONE",
        reasons=(Reason.HBONE,),
        meaning="port 15008 goes to the proxy's listener as it is",
        parity=("P8",),
    ),
    Row(
        id="I5",
        question="the proxy's own port",
        reasons=(Reason.OWN_PORT,),
        meaning="refused: nobody outside reaches 15001, 15006 or 15053",
        parity=("P9",),
    ),
    Row(
        id="I6",
        question="excluded",
        reasons=(Reason.EXCLUDED_PORT,),
        meaning="goes to the app",
        parity=("P7",),
    ),
    Row(
        id="I7",
        question="a node probe's address",
        reasons=(Reason.PROBE_ADDRESS,),
        meaning="169.254.7.127 and its IPv6 counterpart go to the app",
        parity=("P12",),
    ),
    Row(
        id="I8",
        question="this node's own process, or the proxy itself",
        reasons=(Reason.HOST_PROBE, Reason.FROM_PROXY),
        meaning="goes to the app with its true source address",
        parity=("P12", "P13", "P15"),
    ),
    Row(
        id="I9",
        question="proxy down",
        reasons=(Reason.PROXY_DOWN,),
        meaning="no listener: refused with a reset, or passed with --on-proxy-down open",
        parity=("P26", "P28"),
    ),
    Row(
        id="I10",
        question="captured",
        reasons=(Reason.CAPTURED,),
        meaning="accepted by the proxy, which sees the true peer and the true destination",
        parity=("P7", "P10"),
    ),
)


def rows(direction: Direction) -> tuple[Row, ...]:
    """The rows of one direction, in order."""
    return OUT_ROWS if direction is Direction.OUT else IN_ROWS


def row_of(direction: Direction, reason: Reason) -> Row | None:
    """The row that gives this reason; None for reasons that no row decides."""
    name = rule(direction, reason)
    return next((row for row in rows(direction) if row.id == name), None)
