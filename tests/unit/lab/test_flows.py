"""Which rows a demo has."""

from __future__ import annotations

from nodenet.capture.records import PodRecord
from nodenet.lab.flows import Pair, Row, pairs, rows
from nodenet.lab.plan import Family, make_plan

PLAN = make_plan()
A1, B1, A2, B2 = PLAN.pods
PAIR = Pair(source=A1, target=A2, family=4)
OUT, IN, NEITHER = Row(PAIR, "out"), Row(PAIR, "in"), Row(PAIR, None)


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


def test_the_documented_number_of_rows() -> None:
    found = [row for pair in pairs(PLAN) for row in rows(pair, ENROLLED)]
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


def test_one_family_halves_the_pairs() -> None:
    lab = make_plan(family=Family.V6)
    assert {p.family for p in pairs(lab)} == {6}
    assert len(pairs(lab)) == 12
    assert pairs(lab, [(lab.pods[0], lab.pods[1])])[0].destination == "[fd77:1::3]:8080"
