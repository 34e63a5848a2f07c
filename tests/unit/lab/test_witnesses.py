"""What is expected of a row follows from the lab and from what is enrolled now."""

from __future__ import annotations

import pytest

from nodenet.capture.records import PodRecord
from nodenet.lab.flows import Call, Pair, Row, Seen, Side, rows
from nodenet.lab.plan import GUARDED_PORT, SERVICE_PORT, WORKLOAD_PORT, make_plan
from nodenet.lab.witnesses import Expectation, arrivals, expect

PLAN = make_plan()
A1, B1, A2, B2 = PLAN.pods
PODS = {pod.name: pod for pod in PLAN.pods}


def _enrolled(*names: str, direction: str = "both") -> dict[str, PodRecord]:
    return {
        f"lab/{name}": PodRecord(
            name=f"lab/{name}",
            netns="/run/netns/x",
            netns_inode=1,
            netns_cookie=1,
            pod_id=1,
            ips=(),
            backend="ebpf",
            direction=direction,  # type: ignore[arg-type]
            enrolled_at="2026-01-01T00:00:00.000000Z",
        )
        for name in names
    }


@pytest.mark.parametrize(
    "source, server, side, port, enrolled, expected",
    [
        ("a1", "a2", "out", WORKLOAD_PORT, "a1 a2", ("captured-out", "hbone", False, True)),
        ("a1", "a2", "in", WORKLOAD_PORT, "a1 a2", ("captured-in", "hbone", False, True)),
        ("a1", "b2", "out", WORKLOAD_PORT, "a1 a2", ("captured-out", "tcp", False, False)),
        ("b1", "a2", "in", WORKLOAD_PORT, "a1 a2", ("captured-in", "tcp", False, False)),
        ("b1", "b2", None, WORKLOAD_PORT, "a1 a2", ("untouched", "tcp", False, False)),
        ("a1", "a2", "in", GUARDED_PORT, "a1 a2", ("captured-in", "hbone", False, True)),
        ("a2", "a1", "in", GUARDED_PORT, "a1 a2", ("denied-in", "hbone", True, True)),
        ("a2", "a1", "out", GUARDED_PORT, "a1 a2", ("denied-out", "hbone", True, True)),
        # who shows no identity is denied, too
        ("b1", "a2", "in", GUARDED_PORT, "a1 a2", ("denied-in", "tcp", True, False)),
        ("a1", "b2", "out", GUARDED_PORT, "a1 a2", ("captured-out", "tcp", False, False)),
        # taken out by hand: still expected to be a member, and no longer protected
        ("a1", "a2", "in", WORKLOAD_PORT, "a2", ("captured-in", "tcp", False, True)),
        ("a1", "a2", "in", GUARDED_PORT, "a2", ("denied-in", "tcp", True, True)),
        ("a2", "a1", "out", GUARDED_PORT, "a2", ("captured-out", "hbone", False, True)),
        ("a1", "a2", None, WORKLOAD_PORT, "", ("untouched", "tcp", False, True)),
        # enrolled by hand: has an identity, and is reached by plain TCP as the mesh file says
        ("b1", "a2", "out", WORKLOAD_PORT, "a1 a2 b1", ("captured-out", "hbone", False, False)),
        ("b1", "a2", "out", GUARDED_PORT, "a1 a2 b1", ("denied-out", "hbone", True, False)),
        ("a1", "b1", "in", WORKLOAD_PORT, "a1 a2 b1", ("captured-in", "tcp", False, False)),
    ],
)
def test_expectations(
    source: str,
    server: str,
    side: Side | None,
    port: int,
    enrolled: str,
    expected: tuple[object, ...],
) -> None:
    pair = Pair(source=PODS[source], target=PODS[server], family=4, port=port)
    found = expect(Row(pair, side, PODS[server]), PLAN, _enrolled(*enrolled.split()))
    assert found == Expectation(*expected)  # type: ignore[arg-type]


def test_one_direction_alone() -> None:
    pair = Pair(source=A1, target=A2, family=4)
    only_in = _enrolled("a1", "a2", direction="in")
    assert expect(Row(pair, "in", A2), PLAN, only_in).protocol == "tcp"
    assert rows(pair, only_in) == [Row(pair, "in", A2)]


def test_a_plain_lab_expects_no_hbone_and_no_denial() -> None:
    plain = make_plan(mesh=False)
    pair = Pair(source=A2, target=A1, family=4, port=GUARDED_PORT)
    found = expect(Row(pair, "in", A1), plain, _enrolled("a1", "a2"))
    assert found == Expectation("captured-in", "tcp", False, False)


def _call(pod: str | None) -> Call:
    seen = None
    if pod is not None:
        seen = Seen(pod=pod, peer="x", local="x", cookie="1", received=83)
    return Call(
        cookie="1", local=None, peer=None, bytes_sent=0, bytes_received=0, seen=seen, error=None,
        saw="answer",
    )  # fmt: skip


def test_a_proxy_has_to_know_of_calls_for_its_pod_and_for_the_service() -> None:
    service = PLAN.service
    assert service is not None
    enrolled = _enrolled("a1", "a2")
    direct = Pair(source=A1, target=A2, family=4)
    by_name = Pair(source=A1, target=service, family=4, port=SERVICE_PORT)
    found = arrivals(
        [*rows(direct, enrolled), *rows(by_name, enrolled)],
        {
            direct: [_call("lab/a2"), _call(None)],
            by_name: [_call("lab/a1"), _call("lab/a2"), _call("lab/a2"), _call(None)],
        },
    )
    assert found == {
        ("10.77.1.2", "10.77.2.2:8080"): 2 + 2,
        ("10.77.1.2", "10.77.1.2:8080"): 1,
    }
