"""Notes of rows, where `test_explain` does not come by."""

from __future__ import annotations

import pytest

from nodenet.mesh.model import Workload
from nodenet.mesh.trace import UNWATCHED, Notes, Trace
from tests.unit.mesh.building import at, pod, ref, service

DESTINATION = at("10.0.0.2:80")
A = pod("a", "10.0.0.2", uid="a")
BEHIND = pod("a", "10.0.0.2", uid="a", waypoint=ref("ns/w"))


def test_addressed() -> None:
    trace = Trace()
    for found in (A, service("s"), None):
        trace.addressed(found, DESTINATION, "net")
    assert [(step.answer, step.why) for step in trace.steps] == [
        ("workload", "workload a has 10.0.0.2"),
        ("service", "service ns/s.ns by VIP"),
        ("none", "nobody known has 10.0.0.2 in network 'net'"),
    ]


@pytest.mark.parametrize(
    ("workload", "from_waypoint", "answers"),
    [
        (A, False, ["no", "none"]),
        (BEHIND, True, ["yes", "none"]),
        (BEHIND, False, ["no"]),
    ],
)
def test_workload_waypoint(workload: Workload, from_waypoint: bool, answers: list[str]) -> None:
    trace = Trace()
    trace.workload_waypoint(None, workload, from_waypoint)
    assert [step.answer for step in trace.steps] == answers


def test_nobody_listens_on_the_data_path() -> None:
    assert type(UNWATCHED) is Notes
    UNWATCHED.addressed(A, DESTINATION, "")
    assert not hasattr(UNWATCHED, "steps")
