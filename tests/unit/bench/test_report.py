"""The table and the JSON document of a benchmark."""

from __future__ import annotations

import json

import pytest

from bench._report import Floor, Report, columns, number, tables
from bench._samples import Samples


def samples() -> Samples:
    found = Samples()
    for scene, measure, unit, none, ebpf in (
        ("outbound", "connect p50", "us", 15.04, 17.91),
        ("outbound", "connections", "1/s", 31234.5, 27001.0),
        ("inbound", "connect p50", "us", 15.5, 17.0),
    ):
        found.record(scene, measure, unit, "none", none)
        found.record(scene, measure, unit, "ebpf", ebpf)
    return found


@pytest.mark.parametrize(
    ("sense", "got", "ok"), [(">=", 1.1, True), (">=", 1.09, False), ("<=", 1.1, True)]
)
def test_a_floor_is_met_at_its_very_figure(sense: str, got: float, ok: bool) -> None:
    floor = Floor(name="x", sense=">=" if sense == ">=" else "<=", wanted=1.1, got=got)
    assert floor.ok is ok


def test_a_floor_as_json() -> None:
    floor = Floor(name="connect", sense="<=", wanted=0.5, got=0.47123)
    assert floor.document() == {"name": "connect", "wanted": "<= 0.5", "got": 0.4712, "ok": True}


def test_a_table_a_scene_with_the_variants_across() -> None:
    assert tables(samples().rows()) == [
        "OUTBOUND     UNIT                 none                        ebpf\n"
        "connect p50  us       15.0 (15.0-15.0)     17.9 (17.9-17.9) x1.191\n"
        "connections  1/s   31234 (31234-31234)  27001 (27001-27001) x0.864",
        "INBOUND      UNIT              none                     ebpf\n"
        "connect p50  us    15.5 (15.5-15.5)  17.0 (17.0-17.0) x1.097",
    ]


def test_a_variant_without_a_measure_shows_a_dash() -> None:
    found = samples()
    found.record("inbound", "proxy CPU", "us", "ebpf", 80.0)
    assert tables(found.rows())[1].splitlines()[2].split() == [
        "proxy", "CPU", "us", "-", "80.0", "(80.0-80.0)",
    ]  # fmt: skip


def test_the_document_is_one_json_object_that_says_what_was_wanted() -> None:
    report = Report(
        bench="capture",
        machine={"cpus": 2},
        rounds=1,
        samples=samples(),
        floors=[Floor(name="connect", sense="<=", wanted=0.5, got=0.6)],
        extra_ratios={"ebpf/iptables": 0.912345},
        notes=["a note"],
    )
    document = json.loads(json.dumps(report.document()))
    assert document["ok"] is True
    assert document["bench"] == "capture"
    assert document["machine"] == {"cpus": 2}
    assert document["rounds"] == 1
    assert len(document["rows"]) == 6
    assert document["ratios"]["inbound: connect p50, ebpf/none"] == 1.097
    assert document["ratios"]["ebpf/iptables"] == 0.9123
    assert document["floors"] == [{"name": "connect", "wanted": "<= 0.5", "got": 0.6, "ok": False}]
    assert document["notes"] == ["a note"]


def test_the_text_names_missed_floors() -> None:
    report = Report(
        bench="stats",
        machine={"kernel": "6.1", "other_instances": []},
        rounds=3,
        samples=samples(),
        floors=[
            Floor(name="connect", sense="<=", wanted=0.5, got=0.6),
            Floor(name="bulk", sense=">=", wanted=0.97, got=1.0),
        ],
    )
    text = report.text()
    assert text.startswith("stats: 3 rounds; kernel 6.1\n")
    assert "connect   <= 0.5  0.600  MISSED" in text
    assert "bulk     >= 0.97   1.00     met" in text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.01234, "0.0123"), (4.5, "4.50"), (78.94, "78.9"), (123.45, "123.5"), (12345.6, "12346")],
)
def test_numbers_have_three_or_four_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert columns([("a", "bb"), ("ccc", "d")], left=1) == "a    bb\nccc   d"
