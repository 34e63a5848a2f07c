"""Byte counts are exact: what `nodenet conn list` says equals what the workload counted itself."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import ExcludedPort
from nodenet.capture.session import Capture
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

SCRIPT = str(Path(__file__).with_name("exchange.py"))
NODENET = str(Path(sys.executable).with_name("nodenet"))
PORT, EXCLUDED = 8080, 8081
ENDINGS = ("close", "half", "reset", "reset-by-server", "early")


@contextmanager
def started(where: Namespace, *argv: str, ready: bytes, **extra: Any) -> Iterator[Any]:
    """A process inside a namespace that has said that it is ready, or was not asked to."""
    child = where.popen([sys.executable, *argv], stdout=subprocess.PIPE, **extra)
    try:
        assert child.stdout is not None
        if ready:
            assert child.stdout.readline() == ready
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def listed(instance: Instance, *words: str) -> list[dict[str, Any]]:
    """Rows of `nodenet conn list -j`."""
    done = subprocess.run(
        [NODENET, "--id", instance.id or "", "conn", "list", "-j", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def plans(rng: random.Random, count: int, endings: tuple[str, ...]) -> str:
    """Random exchanges, sizes from a head alone to 300 kB, weighted to the small."""

    def size(least: int) -> int:
        return least + int(rng.paretovariate(0.5) * 10) % 300_000

    lines = []
    for _ in range(count):
        ending = rng.choice(endings)
        answer = rng.choice((0, 1, size(0))) if ending != "early" else 1000 + size(0) % 2000
        lines.append(f"{size(24)} {answer} {ending}\n")
    return "".join(lines)


@pytest.fixture
def exchange(
    instance: Instance, capture: Capture, topology: Topology
) -> Iterator[tuple[Namespace, Capture]]:
    """A pod behind a real proxy, and a counting server outside on two ports."""
    pod, outside = topology.pair()
    proxy = ("-m", "nodenet.agents.ztunnel", "run", "--id", instance.id or "")
    with (
        started(outside, SCRIPT, "serve", str(PORT), ready=b"ready\n"),
        started(outside, SCRIPT, "serve", str(EXCLUDED), ready=b"ready\n"),
        started(topology.namespace("node"), *proxy, ready=b"", stderr=subprocess.DEVNULL),
    ):
        options = EnrolOptions(exclude_ports=(ExcludedPort("out", EXCLUDED),))
        result = capture.enroll(pod.path, name="t/pod", options=options, wait=10)
        assert result.listeners
        yield pod, capture


def exchanged(pod: Namespace, host: str, port: int, plan: str) -> list[dict[str, Any]]:
    """Runs a plan in the pod to its end; the client's own counts."""
    done = pod.run(sys.executable, SCRIPT, "connect", host, str(port), input=plan, timeout=100)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("host", "port", "via"),
    [("10.99.0.2", PORT, "ebpf"), ("fd99::2", PORT, "ebpf"), ("10.99.0.2", EXCLUDED, "none")],
)
def test_a_thousand_connections_of_any_ending_are_counted_exactly(
    exchange: tuple[Namespace, Capture], instance: Instance, host: str, port: int, via: str
) -> None:
    pod, _ = exchange
    count = 1000 if via == "ebpf" and ":" not in host else 200
    counted = exchanged(pod, host, port, plans(random.Random(count + port), count, ENDINGS))
    assert len(counted) == count
    rows = {row["id"]: row for row in listed(instance, "--closed", "--pod", "t/pod")}
    wrong: list[tuple[dict[str, Any], object]] = []
    for one in counted:
        row = rows.get(one["id"])
        if row is None:
            wrong.append((one, "no record"))
            continue
        kernel = (row["bytes_sent"], row["bytes_received"], row["captured_by"])
        # a close with unread data may cut the answer: then the kernel says how much arrived
        received = row["bytes_received"] if one["ending"] == "early" else one["received"]
        assert received <= one["received"]
        if kernel != (one["sent"], received, via):
            wrong.append((one, kernel))
    assert not wrong, wrong[:5]


def test_live_counts_equal_the_workload_and_ss(
    exchange: tuple[Namespace, Capture], instance: Instance
) -> None:
    pod, _ = exchange
    plan = plans(random.Random(3), 50, ("hold",))
    argv = (SCRIPT, "connect", "10.99.0.2", str(PORT))
    with started(pod, *argv, ready=b"", stdin=subprocess.PIPE) as client:
        client.stdin.write(plan.encode() + b"\n")
        client.stdin.flush()
        counted = [json.loads(client.stdout.readline()) for _ in range(50)]
        rows = {row["id"]: row for row in listed(instance, "--pod", "t/pod", "--dir", "out")}
        seen = socket_statistics(pod)
    for one in counted:
        row, ss = rows[one["id"]], seen[one["id"]]
        assert (row["bytes_sent"], row["bytes_received"]) == (one["sent"], one["received"])
        # ss counts retransmissions as sent, the SYN as acknowledged, and leaves zeroes out
        assert row["bytes_sent"] == ss.get("bytes_sent", 0) - ss.get("bytes_retrans", 0)
        assert row["bytes_acked"] == ss["bytes_acked"] - 1
        assert row["bytes_received"] == ss.get("bytes_received", 0)
        assert row["state"] == "established"


def socket_statistics(pod: Namespace) -> dict[str, dict[str, int]]:
    """`ss -ntieO` inside the pod: numbers by the socket's id."""
    found = {}
    for line in pod.run("ss", "-ntieOH").stdout.splitlines():
        cookie = re.search(r"\bsk:([0-9a-f]+)", line)
        assert cookie is not None, line
        found[cookie[1]] = {k: int(v) for k, v in re.findall(r"\b(bytes_\w+):(\d+)", line)}
    return found
