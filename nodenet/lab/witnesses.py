"""Who is asked about a demo besides the applications, and what must be true of a row.

Pure: the facts come as arguments. The kernel's records say how sockets were treated, the proxies'
access logs who was at the other end and what was decided, the capture between the nodes what could
be read on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nodenet import abi
from nodenet.capture.records import PodRecord
from nodenet.conns.connection import Connection
from nodenet.lab.access_log import AccessLine, AccessLog, host_of
from nodenet.lab.flows import Call, Decision, Expected, FlowWire, Pair, Protocol, Row, captures
from nodenet.lab.plan import GUARDED_PORT, LabPlan
from nodenet.lab.wire import Wire

#: Where iptables redirects an application's connection to.
_LOOPBACK: Final = ("127.0.0.1", "[::1]")


class Evidence:
    """The kernel's records, indexed by what the checks ask for."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        self.by_id: dict[str, Connection] = {}
        self._apps: set[tuple[str | None, str]] = set()
        self._accepted: dict[tuple[str | None, str], list[Connection]] = {}
        self._dialled: dict[tuple[str | None, str], list[Connection]] = {}
        for c in connections:
            if self.by_id.setdefault(c.id, c) is not c:
                continue  # open when it was looked for first, closed a moment later
            if c.proxy and c.dir == "in":
                self._accepted.setdefault((c.netns_cookie, c.local), []).append(c)
            elif c.dir == "out" and not c.proxy:
                self._apps.add((c.netns_cookie, c.local))
            elif c.dir == "out":
                self._dialled.setdefault((c.netns_cookie, c.remote), []).append(c)

    def accepted(self, netns_cookie: int, local: str) -> list[Connection]:
        """The proxy's sockets in that namespace that accepted a connection to ``local``."""
        return self._accepted.get((str(netns_cookie), local), [])

    def is_app(self, netns_cookie: int, local: str) -> bool:
        """Whether an application in that namespace has called from that ENDPOINT."""
        return (str(netns_cookie), local) in self._apps

    def dialled(self, netns_cookie: int, remote: str) -> list[Connection]:
        """The proxy's sockets in that namespace that were connected to ``remote``."""
        return self._dialled.get((str(netns_cookie), remote), [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnesses:
    """All of them."""

    plan: LabPlan
    enrolled: Mapping[str, PodRecord]
    """What is captured now, by full name of the pod."""
    kernel: Evidence
    log: AccessLog | None = None
    """None: a lab without a mesh, whose proxies keep none."""
    wire: Wire | None = None
    """None: nobody listened between the nodes."""
    marks: Mapping[Pair, str] = field(default_factory=dict)
    """What each pair's applications sent to be found."""
    arrivals: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Of `arrivals`."""


class Expectation(NamedTuple):
    """What must be true of a row."""

    text: Expected
    protocol: Protocol
    denied: bool
    in_mesh: bool
    """Both ends are of the mesh: whatever happens, nothing of it may cross in plaintext."""


def expect(row: Row, plan: LabPlan, enrolled: Mapping[str, PodRecord]) -> Expectation:
    """From how the lab was made and what is enrolled now.

    A member of the mesh that somebody has taken out of the capture stays a member: the others go on
    expecting its identity, and what it says itself is plaintext that should not be there.
    """
    (pair, side, server), members = row, plan.members
    source = pair.source
    tunnelled = captures(enrolled.get(source.full_name), "out") and server in members
    judged = plan.mesh and captures(enrolled.get(server.full_name), "in")
    allowed = tunnelled and source == plan.privileged
    denied = judged and row.server_port == GUARDED_PORT and not allowed
    kind = "denied" if denied else "captured"
    text: Expected = "untouched" if side is None else f"{kind}-{side}"  # type: ignore[assignment] # mypy does not join literals
    return Expectation(
        text=text,
        protocol="hbone" if tunnelled else "tcp",
        denied=denied,
        in_mesh=source in members and server in members,
    )


class Told(NamedTuple):
    """What the proxies' access logs say of a row."""

    protocol: Protocol = "tcp"
    src_identity: str | None = None
    dst_identity: str | None = None
    decision: Decision | None = None
    policy: str | None = None
    status: int | None = None
    lines: int = 0
    """How many connections the proxy of this side has logged."""
    error: str | None = None


def told(row: Row, call: Call, witnesses: Witnesses) -> Told:
    """What the proxy of the row's side wrote about a call; nothing without a mesh or a proxy."""
    log, side = witnesses.log, row.side
    if log is None or side is None:
        return Told()
    far = inbound_lines(log, row)
    if side == "out":
        accepted = accepted_of(row, call, witnesses)
        line = None if accepted is None else log.outbound(accepted.id, accepted.remote)
        lines = [] if line is None else [line]
    else:
        # one that says something else than the others is the one to be shown
        lines = sorted(far, key=lambda each: each.decision == "allow")
    if not lines:
        return Told()
    shown = lines[0]
    return Told(
        protocol=shown.protocol,
        src_identity=shown.src_identity,
        dst_identity=shown.dst_identity,
        decision=shown.decision,
        policy=next((x.policy for x in (*lines, *far) if x.policy), None)
        if shown.decision == "deny"
        else None,
        status=shown.status,
        lines=len(lines),
        error=shown.error,
    )


def is_logged(row: Row, calls: Sequence[Call], witnesses: Witnesses) -> bool:
    """Whether the proxy of the row's side has written all that it will write about it."""
    if row.side == "out":
        return all(told(row, call, witnesses).lines for call in calls_of(row, calls))
    log = witnesses.log
    if row.side is None or log is None:
        return True
    return len(inbound_lines(log, row)) >= witnesses.arrivals.get(arrival(row), 0)


def local_of(call: Call, kernel: Evidence) -> str | None:
    """ENDPOINT the application called from; the kernel knows it after a reset, too."""
    if call.local is not None:
        return call.local
    record = kernel.by_id.get(call.cookie)
    return None if record is None else record.local


def accepted_of(row: Row, call: Call, witnesses: Witnesses) -> Connection | None:
    """The proxy's end of a captured call, at its outbound listener."""
    kernel, record = witnesses.kernel, witnesses.enrolled[row.pair.source.full_name]
    local, cookie = local_of(call, kernel) or "", record.netns_cookie
    # the application's connection was sent to its own address, or by iptables to loopback
    hosts = (local.rpartition(":")[0], *_LOOPBACK)
    there = [c for h in hosts for c in kernel.accepted(cookie, f"{h}:{abi.OUTBOUND_PORT}")]
    exact = [c for c in there if c.remote == local]
    if record.backend != "iptables":
        return exact[0] if exact else None
    # From one port to two destinations are two connections; redirected, they would be one. So
    # conntrack has given one of them another source port, and the log says where each went.
    renamed = [
        c
        for c in there
        if host_of(c.remote) == host_of(local) and not kernel.is_app(cookie, c.remote)
    ]
    unknown: Connection | None = None
    for known in (*exact, *renamed):
        line = witnesses.log.outbound(known.id, known.remote) if witnesses.log else None
        if line is None:
            unknown = unknown or known
        elif line.reached == row.server_endpoint:
            return known
    return unknown


def inbound_lines(log: AccessLog, row: Row) -> list[AccessLine]:
    """What the server's proxy has logged of the pair."""
    return log.inbound(*arrival(row))


def arrival(row: Row) -> tuple[str, str]:
    """Between which address and which ENDPOINT the server's proxy sees a row's calls."""
    return str(row.pair.source.address(row.pair.family)), row.server_endpoint


def arrivals(
    rows: Iterable[Row], results: Mapping[Pair, Sequence[Call]]
) -> Counter[tuple[str, str]]:
    """How many calls each server's proxy has to know of, those for a service among them."""
    found: Counter[tuple[str, str]] = Counter()
    # a pair is seen from two sides, but it is called once
    for row in {(row.pair, row.server): row for row in rows}.values():
        calls = calls_of(row, results[row.pair])
        if row.pair.target is not row.server:
            calls = [call for call in calls if call.seen is not None]
        found[arrival(row)] += len(calls)
    return found


def crossed(row: Row, witnesses: Witnesses) -> FlowWire | None:
    """What the capture shows of a row; None when it stays on one node."""
    wire, pair = witnesses.wire, row.pair
    if wire is None or not row.crosses:
        return None
    source, server = (str(pod.address(pair.family)) for pod in (pair.source, row.server))
    return FlowWire(
        plaintext_seen=bool(wire.marks[witnesses.marks[pair]]),
        ports=wire.ports(source, server),
    )


def calls_of(row: Row, calls: Sequence[Call]) -> list[Call]:
    """The calls that a row is about: of a service's those that this server answered, or nobody."""
    if row.pair.target is row.server:
        return list(calls)
    return [c for c in calls if c.seen is None or c.seen.pod == row.server.full_name]
