"""The decision rows: one text per row, every reason of the ABI in exactly one place."""

from __future__ import annotations

from nodenet.abi import IN_RULES, OUT_RULES, Direction, Reason, rule
from nodenet.capture.rows import IN_ROWS, OUT_ROWS, row_of, rows


def test_rows_are_numbered_in_order() -> None:
    assert [row.id for row in OUT_ROWS] == [f"O{n}" for n in range(1, 9)]
    assert [row.id for row in IN_ROWS] == [f"I{n}" for n in range(1, 11)]


def test_each_reason_stands_in_the_row_the_abi_gives_it() -> None:
    for direction, table in ((Direction.OUT, OUT_RULES), (Direction.IN, IN_RULES)):
        stated = {reason: row.id for row in rows(direction) for reason in row.reasons}
        assert stated == table


def test_reasons_without_a_row_have_none() -> None:
    assert row_of(Direction.OUT, Reason.PRE_ENROLMENT) is None
    assert rule(Direction.IN, Reason.PRE_ENROLMENT) is None


def test_every_row_names_the_behaviour_it_keeps() -> None:
    for row in (*OUT_ROWS, *IN_ROWS):
        assert row.parity and all(p.startswith("P") for p in row.parity), row.id
        assert row.meaning and row.question
