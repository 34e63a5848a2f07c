"""Traffic between the lab's pods, and the proof of what happened to it.

Every pod that calls somebody runs one calling application, all at the same time. They hold their
connections open until the kernel's records have been read, so a record cannot be missed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from nodenet.errors import NodenetError, NotFound, UsageError
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.netns import NetNs, named_path
from nodenet.lab import capture_glue, cgroups, processes
from nodenet.lab.flows import Call, Flow, Pair, pairs, rows
from nodenet.lab.plan import WORKLOAD_PORT, LabPlan, Pod
from nodenet.lab.rules import count_rules
from nodenet.lab.state import LabDir, LabState
from nodenet.lab.status import problems
from nodenet.lab.verdicts import Evidence, judge

#: Seconds one connection with its request may take.
CALL_SECONDS: Final = 3.0
#: Seconds a calling application has to start, besides its calls.
_START_SECONDS: Final = 10.0
#: Requests a pair; each is a connection, and all of them are open at the same time.
MAX_REQUESTS: Final = 100


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``lab demo``."""

    ok: bool
    flows: tuple[Flow, ...]
    iptables_rules: int
    """Firewall rules in all of the lab's namespaces together."""


class FlowsUnexpected(NodenetError):
    """Some rows of the demo are not as expected."""


class CallerFailed(NodenetError):
    """A calling application ended without an answer."""


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
    with contextlib.ExitStack() as stack:
        callers = [
            stack.enter_context(_calling(directory, state, pod, calls, requests))
            for pod, calls in _by_source(wanted).items()
        ]
        results = {pair: calls for caller in callers for pair, calls in caller.results().items()}
        evidence = Evidence(capture_glue.connections(plan.instance) if enrolled else ())
    flows = tuple(
        judge(row, results[pair], evidence, enrolled)
        for pair in wanted
        for row in rows(pair, enrolled)
    )
    count = sum(_rules_in(host.netns) for host in plan.hosts)
    redirected_by_rules = any(record.backend == "iptables" for record in enrolled.values())
    return DemoReport(
        ok=all(flow.ok for flow in flows) and (redirected_by_rules or count == 0),
        flows=flows,
        iptables_rules=count,
    )


def parse_pairs(plan: LabPlan, texts: Sequence[str]) -> list[tuple[Pod, Pod]]:
    """``a1:b2`` or several with commas; UsageError for what is no pair of different pods."""
    found = []
    for text in (part for given in texts for part in given.split(",")):
        names = text.split(":")
        if len(names) != 2 or names[0] == names[1]:
            raise UsageError(f"--pairs {text}: not a pair of pods", hint="write e.g. a1:b2")
        ends = [plan.pod(name) for name in names]
        for name, pod in zip(names, ends, strict=True):
            if pod is None:
                known = " ".join(p.name for p in plan.pods)
                raise NotFound(f"no pod {name} in lab {plan.lab}", hint=f"it has: {known}")
        found.append((ends[0], ends[1]))
    return found  # type: ignore[return-value] # None was refused above


def check(report: DemoReport) -> None:
    """Raises FlowsUnexpected with the first row that is not as expected, if there is one."""
    bad = [flow for flow in report.flows if not flow.ok]
    if bad:
        first = bad[0]
        source, target = (name.rpartition("/")[2] for name in (first.from_, first.to))
        family = " (v6)" if first.family == 6 else ""
        side = "" if first.side is None else f" {first.side}"
        at = target if first.side == "in" else source
        raise FlowsUnexpected(
            f"{len(bad)} of {len(report.flows)} flows not as expected: "
            f"{source}->{target}{family}{side}: {first.why}",
            hint=f"see: nodenet capture verify {at}",
        )
    if not report.ok:
        raise FlowsUnexpected(
            f"firewall rules in the lab's namespaces: {report.iptables_rules}, expected none",
            hint="see: nodenet lab exec a1 -- nft list ruleset",
        )


def _by_source(wanted: Sequence[Pair]) -> dict[Pod, list[Pair]]:
    found: dict[Pod, list[Pair]] = {}
    for pair in wanted:
        found.setdefault(pair.source, []).append(pair)
    return found


def _rules_in(name: str) -> int:
    with NetNs.named(name) as namespace:
        return count_rules(namespace)


class _Caller:
    """A calling application that has been told whom to call."""

    def __init__(self, pod: Pod, calls: Sequence[Pair], process: subprocess.Popen[bytes]) -> None:
        self._pod = pod
        self._calls = calls
        self._process = process
        self._deadline = time.monotonic() + _START_SECONDS + CALL_SECONDS * len(calls)

    def results(self) -> Mapping[Pair, list[Call]]:
        """Waits for the answer; CallerFailed when the application ends or is too late."""
        output = self._process.stdout
        assert output is not None
        poll = select.poll()
        poll.register(output, select.POLLIN)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            left = self._deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise CallerFailed(f"calls from {self._pod.full_name} are not done in time")
            chunk = os.read(output.fileno(), 1 << 16)
            if not chunk:
                raise CallerFailed(f"the calling app in {self._pod.full_name} ended early")
            answer += chunk
        found = msgspec.json.decode(answer, type=list[list[Call]])
        return dict(zip(self._calls, found, strict=True))


@contextlib.contextmanager
def _calling(
    directory: LabDir, state: LabState, pod: Pod, calls: Sequence[Pair], requests: int
) -> Iterator[_Caller]:
    """An application in a pod that makes these calls and holds them open for the block."""
    cgroup = None
    if state.cgroup is not None:
        cgroup = Cgroup.create(cgroups.host_cgroup(Path(state.cgroup), pod)).path
    argv = processes.launch_argv(
        [sys.executable, "-m", "nodenet.lab.workload", "call", "--timeout", str(CALL_SECONDS)],
        netns=named_path(pod.netns),
        cgroup=cgroup,
        hosts_file=directory.hosts_path,
        keep_input=True,
    )
    targets = [
        {
            "address": str(pair.target.address(pair.family)),
            "port": WORKLOAD_PORT,
            "count": requests,
        }
        for pair in calls
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            # the gate's byte; a caller whose maker dies ends by itself, so it needs no record
            process.stdin.write(b"g" + json.dumps(targets).encode() + b"\n")
            process.stdin.flush()
            yield _Caller(pod, calls, process)
        finally:
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
            try:
                process.wait(_START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
