"""Which rows a demo has."""

from __future__ import annotations

from nodenet.capture.records import PodRecord
from nodenet.lab.flows import Pair, Row, pairs, rows
from nodenet.lab.plan import GUARDED_PORT, Family, make_plan

PLAN = make_plan()
PLAIN = make_plan(mesh=False)
A1, B1, A2, B2 = PLAN.pods
PAIR = Pair(source=A1, target=A2, family=4)
OUT, IN, NEITHER = Row(PAIR, "out", A2), Row(PAIR, "in", A2), Row(PAIR, None, A2)


def _record(name: str, direction: str = "both") -> PodRecord:
    return PodRecord(
        name=name,
        netns="/run/netns/x",
        netns_inode=1,
        netns_cookie=1,
        pod_id=1,
        ips=(),
        backend="ebpf",
        direction=direction,  # type: ignore[arg-type]
        enrolled_at="2026-01-01T00:00:00.000000Z",
    )


ENROLLED = {"lab/a1": _record("lab/a1"), "lab/a2": _record("lab/a2")}


def test_the_documented_number_of_rows_of_a_plain_lab() -> None:
    found = [row for pair in pairs(PLAIN) for row in rows(pair, ENROLLED)]
    assert len(found) == 28
    assert sum(row.side == "out" for row in found) == 12
    assert sum(row.side == "in" for row in found) == 12
    assert {(r.pair.source.name, r.pair.target.name) for r in found if r.side is None} == {
        ("b1", "b2"),
        ("b2", "b1"),
    }


def test_rows_follow_what_is_enrolled_not_the_plan() -> None:
    assert rows(PAIR, {}) == [NEITHER]
    assert rows(PAIR, ENROLLED) == [OUT, IN]
    one_way = {"lab/a1": _record("lab/a1", "in"), "lab/a2": ENROLLED["lab/a2"]}
    assert rows(PAIR, one_way) == [IN]


def test_a_mesh_adds_the_guarded_port_and_the_service() -> None:
    found = [row for pair in pairs(PLAN) for row in rows(pair, ENROLLED)]
    assert len(found) == 28 + 8 + 8
    guarded = [r for r in found if r.server_port == GUARDED_PORT]
    assert {(r.pair.source.name, r.server.name, r.side) for r in guarded} == {
        ("a1", "a2", "out"), ("a1", "a2", "in"), ("a2", "a1", "out"), ("a2", "a1", "in"),
    }  # fmt: skip
    service = [r for r in found if r.pair.target is not r.server]
    assert {(r.pair.source.name, r.server.name, r.side) for r in service} == {
        ("a1", "a1", "out"), ("a1", "a2", "out"), ("a2", "a1", "out"), ("a2", "a2", "out"),
    }  # fmt: skip
    assert {r.pair.destination for r in service} == {"10.77.255.1:80", "[fd77:ff::1]:80"}
    assert {r.server_endpoint for r in service if r.pair.family == 4} == {
        "10.77.1.2:8080", "10.77.2.2:8080",
    }  # fmt: skip
    assert [r.crosses for r in service if r.pair.source is A1] == [False, True] * 2


def test_a_service_is_proved_from_the_caller_alone_once_an_endpoint() -> None:
    service = PLAN.service
    assert service is not None
    pair = Pair(source=A1, target=service, family=6, port=80)
    assert rows(pair, ENROLLED) == [Row(pair, "out", A1), Row(pair, "out", A2)]
    assert rows(pair, {}) == [Row(pair, None, A1), Row(pair, None, A2)]


def test_one_family_halves_the_pairs() -> None:
    lab = make_plan(family=Family.V6, mesh=False)
    assert {p.family for p in pairs(lab)} == {6}
    assert len(pairs(lab)) == 12
    chosen = pairs(lab, [(lab.pods[0], lab.pods[1], 8080)])
    assert [p.destination for p in chosen] == ["[fd77:1::3]:8080"]
