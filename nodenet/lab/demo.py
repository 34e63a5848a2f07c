"""Traffic between the lab's pods, and the proof of what happened to it.

Every pod that calls somebody runs one calling application, all at the same time. They hold their
connections open until the kernel's records have been read, so a record cannot be missed; then the
proxies' access logs are read, and at last what has been captured between the nodes.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from nodenet.capture.records import PodRecord
from nodenet.errors import NodenetError, UsageError
from nodenet.kernel.netns import NetNs
from nodenet.lab import capture_glue, mesh, pcap, scapy_reader
from nodenet.lab.access_log import AccessLog, LogTail
from nodenet.lab.callers import calling
from nodenet.lab.flows import Call, Flow, Pair, Row, pairs, rows
from nodenet.lab.plan import GUARDED_PORT, LabPlan
from nodenet.lab.rules import count_rules
from nodenet.lab.selection import parse_pairs
from nodenet.lab.sniffer import Sniffer
from nodenet.lab.state import LabDir, LabState
from nodenet.lab.status import problems
from nodenet.lab.verdicts import judge
from nodenet.lab.wire import Wire, WireReport
from nodenet.lab.witnesses import Evidence, Witnesses, arrivals, expect, is_logged

#: Seconds the proxies have to write what they know of connections that have ended.
LOG_SECONDS: Final = 5.0
#: Requests a pair; each is a connection, and all of them are open at the same time.
MAX_REQUESTS: Final = 100
_TOKEN_BYTES: Final = 4

Results = Mapping[Pair, Sequence[Call]]


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``lab demo``."""

    ok: bool
    mesh: bool
    """Whether the enrolled pods are a mesh, with HBONE between them."""
    policy: str | None
    """The policy in force."""
    flows: tuple[Flow, ...]
    iptables_rules: int
    """Firewall rules in all of the lab's namespaces together."""
    wire: WireReport


class FlowsUnexpected(NodenetError):
    """Some rows of the demo are not as expected."""


class LabUnwell(NodenetError):
    """The lab is there, but not in working order."""


def demo(directory: LabDir, *, requests: int = 3, chosen: Sequence[str] = ()) -> DemoReport:
    """Makes the calls and judges them. ``chosen`` are pairs as ``a1:b2``; empty: every pair.

    Raises LabNotUp, LabUnwell, or UsageError for a pair or number that cannot be.
    """
    state = directory.require()
    plan = state.plan()
    if not 1 <= requests <= MAX_REQUESTS:
        raise UsageError(f"--requests {requests}: out of range 1-{MAX_REQUESTS}")
    wanted = pairs(plan, parse_pairs(plan, chosen))
    wrong = problems(state)
    if wrong:
        raise LabUnwell(
            f"lab {plan.lab} does not work: {wrong[0]}", hint="make it again: sudo nodenet lab up"
        )
    enrolled = capture_glue.enrolments(plan)
    proved = [row for pair in wanted for row in rows(pair, enrolled)]
    results, witnesses, wire = _observe(directory, state, proved, enrolled, requests)
    flows = tuple(judge(row, results[row.pair], witnesses) for row in proved)
    count = sum(_rules_in(host.netns) for host in plan.hosts)
    redirected_by_rules = any(record.backend == "iptables" for record in enrolled.values())
    return DemoReport(
        ok=all(flow.ok for flow in flows) and (redirected_by_rules or count == 0) and wire.ok,
        mesh=plan.mesh,
        policy=mesh.policy_name(plan),
        flows=flows,
        iptables_rules=count,
        wire=wire,
    )


def _observe(
    directory: LabDir,
    state: LabState,
    proved: Sequence[Row],
    enrolled: Mapping[str, PodRecord],
    requests: int,
) -> tuple[Results, Witnesses, WireReport]:
    """Makes the calls, and hears every witness."""
    plan = state.plan()
    token = f"nn{secrets.token_hex(_TOKEN_BYTES)}"
    wanted = list(dict.fromkeys(row.pair for row in proved))
    marks = {pair: f"{token}{number:04x}" for number, pair in enumerate(wanted)}
    denied = {row.pair for row in proved if expect(row, plan, enrolled).denied}
    tail = LogTail(_logs(state)) if plan.mesh else None
    since = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    # under a name of its own at first: somebody else may be running a demo, too
    capture = directory.capture_path.with_name(f".wire-{token}.pcap")
    try:
        with Sniffer(plan.router.netns, capture) as sniffer:
            with contextlib.ExitStack() as stack:
                callers = [
                    stack.enter_context(calling(directory, state, calls, requests, marks, denied))
                    for calls in _by_source(wanted)
                ]
                results = {pair: calls for caller in callers for pair, calls in caller.results()}
                kernel = Evidence(
                    capture_glue.connections(plan.instance, since) if enrolled else ()
                )
            witnesses = Witnesses(
                plan=plan,
                enrolled=enrolled,
                kernel=kernel,
                marks=marks,
                arrivals=arrivals(proved, results),
            )
            if tail is not None:
                # their connections end with the callers, and then the proxies write
                witnesses = _with_log(witnesses, tail, proved, results)
        wire, read_by = _read_capture(plan, capture, token)
        capture.replace(directory.capture_path)
    finally:
        capture.unlink(missing_ok=True)
    report = wire.report(lost=sniffer.lost, read_by=read_by, pcap=str(directory.capture_path))
    return results, replace(witnesses, wire=wire), report


def check(report: DemoReport) -> None:
    """Raises FlowsUnexpected with the first row that is not as expected, if there is one."""
    bad = [flow for flow in report.flows if not flow.ok]
    if bad:
        first = bad[0]
        at = first.server if first.side == "in" else first.from_
        raise FlowsUnexpected(
            f"{len(bad)} of {len(report.flows)} flows not as expected: "
            f"{_described(first)}: {first.why}",
            hint=f"see: nodenet capture verify {_short(at)}",
        )
    wire = report.wire
    if not wire.ok:
        if wire.lost:
            what = f"{wire.lost} packets were not captured"
        elif wire.not_tls:
            what = f"not TLS to 15008: {wire.not_tls[0]}"
        else:
            what = f"{wire.plaintext_in_mesh} plaintext markers between enrolled pods"
        raise FlowsUnexpected(f"between the nodes: {what}", hint=f"see: {wire.pcap}")
    if not report.ok:
        raise FlowsUnexpected(
            f"firewall rules in the lab's namespaces: {report.iptables_rules}, expected none",
            hint="see: nodenet lab exec a1 -- nft list ruleset",
        )


def _described(flow: Flow) -> str:
    """``a1->a2:8081 (v6) in``."""
    port = f":{flow.to_port}" if flow.to_port == GUARDED_PORT else ""
    by = "" if flow.to == flow.server else f" (by {_short(flow.server)})"
    family = " (v6)" if flow.family == 6 else ""
    side = "" if flow.side is None else f" {flow.side}"
    return f"{_short(flow.from_)}->{_short(flow.to)}{port}{by}{family}{side}"


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _by_source(wanted: Sequence[Pair]) -> list[list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for pair in wanted:
        found.setdefault(pair.source.name, []).append(pair)
    return list(found.values())


def _rules_in(name: str) -> int:
    with NetNs.named(name) as namespace:
        return count_rules(namespace)


def _logs(state: LabState) -> list[Path]:
    return [Path(process.log) for process in state.processes if process.role == "proxy"]


def _with_log(
    witnesses: Witnesses, tail: LogTail, proved: Sequence[Row], results: Results
) -> Witnesses:
    """With the access logs, when every captured call is in them on every captured side."""

    def enough(log: AccessLog) -> bool:
        known = replace(witnesses, log=log)
        return all(is_logged(row, results[row.pair], known) for row in proved)

    return replace(witnesses, log=tail.read_until(enough, LOG_SECONDS))


def _read_capture(plan: LabPlan, path: Path, token: str) -> tuple[Wire, str]:
    """What is in the file, and who has read it."""
    addressed = [*plan.members, *([plan.service] if plan.service else [])]
    members = {str(address) for host in addressed for address in host.addresses}
    if scapy_reader.available():
        return Wire(scapy_reader.read(path), members, token), scapy_reader.name()
    return Wire(pcap.read(path), members, token), "nodenet"
