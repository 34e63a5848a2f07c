"""What a demo says: chosen pairs, the error of the first bad row, the table."""

from __future__ import annotations

import msgspec
import pytest

from nodenet.cli import lab as cli
from nodenet.cli.style import Style
from nodenet.errors import NotFound, UsageError
from nodenet.lab.demo import DemoReport, FlowsUnexpected, check, parse_pairs
from nodenet.lab.flows import Flow
from nodenet.lab.plan import make_plan

PLAN = make_plan()
GOOD = Flow(
    from_="lab/a1",
    to="lab/a2",
    family=4,
    side="out",
    captured_by="ebpf",
    listener="10.77.1.2:15001",
    orig_dst="10.77.2.2:8080",
    bytes_sent=83,
    bytes_received=12_702,
    peer_seen="10.77.2.2:8080",
    conn_id="3a01",
    expected="captured-out",
    ok=True,
    why=None,
)
INWARD = msgspec.structs.replace(
    GOOD, side="in", listener="[fd77:2::2]:15006", family=6, orig_dst="[fd77:2::2]:8080",
    bytes_sent=12_702, bytes_received=83, peer_seen="[fd77:1::2]:4711", expected="captured-in",
)  # fmt: skip
UNTOUCHED = msgspec.structs.replace(
    GOOD, from_="lab/b1", to="lab/b2", side=None, captured_by="none", listener=None, orig_dst=None,
    expected="untouched",
)  # fmt: skip
BAD = msgspec.structs.replace(
    INWARD, family=4, captured_by="none", listener=None, orig_dst=None, ok=False,
    why="listener a2:15006 not reached, app got it directly",
)  # fmt: skip


def _report(*flows: Flow, rules: int = 0, ok: bool | None = None) -> DemoReport:
    good = all(f.ok for f in flows) if ok is None else ok
    return DemoReport(ok=good, flows=flows, iptables_rules=rules)


def test_pairs_are_read_by_both_names_with_commas_or_repeated() -> None:
    found = parse_pairs(PLAN, ["a1:b2,lab/b1:a1", "a2:a1"])
    assert [(a.name, b.name) for a, b in found] == [("a1", "b2"), ("b1", "a1"), ("a2", "a1")]


@pytest.mark.parametrize("text", ["a1", "a1:", "a1:a1", "a1:b1:a2", ""])
def test_what_is_no_pair(text: str) -> None:
    with pytest.raises((UsageError, NotFound)):
        parse_pairs(PLAN, [text])


def test_all_well_raises_nothing() -> None:
    check(_report(GOOD, INWARD, UNTOUCHED))


def test_the_documented_error_names_the_first_bad_row() -> None:
    with pytest.raises(FlowsUnexpected) as caught:
        check(_report(GOOD, BAD, BAD))
    assert caught.value.line() == (
        "2 of 3 flows not as expected: a1->a2 in: listener a2:15006 not reached, "
        "app got it directly; see: nodenet capture verify a2"
    )
    assert caught.value.exit_code == 1


def test_rules_alone_are_an_error_too() -> None:
    with pytest.raises(FlowsUnexpected, match="lab's namespaces: 3, expected none"):
        check(_report(GOOD, rules=3, ok=False))


def test_the_table() -> None:
    text = cli._demo_text(_report(GOOD, INWARD, UNTOUCHED), Style())
    rows = [line.split() for line in text.splitlines()]
    assert rows[1] == "a1 a2 out ebpf a1:15001 10.77.2.2:8080 83 12.4K ok".split()
    assert rows[2] == (
        "a1 a2 (v6) in ebpf a2:15006 [fd77:2::2]:8080 12.4K 83 ok peer seen: fd77:1::2".split()
    )
    assert rows[3] == "b1 b2 - none - - 83 12.4K ok not enrolled, untouched".split()
    assert text.splitlines()[4] == (
        "3 rows, 3 ok. The apps saw the true peer in every row (getpeername). "
        "No iptables rule in any namespace."
    )
    assert "capture explain a1 10.77.2.2:8080" in text


def test_a_bad_row_takes_the_claim_away() -> None:
    text = cli._demo_text(_report(BAD, rules=2), Style())
    assert "FAIL  listener a2:15006 not reached" in text
    assert text.splitlines()[2:] == ["1 rows, 0 ok. 2 iptables rules in the lab's namespaces."]
