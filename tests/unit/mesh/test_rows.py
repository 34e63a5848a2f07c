"""The table of rows."""

from __future__ import annotations

from nodenet.mesh.rows import ROWS


def test_ids_are_the_numbers_in_order() -> None:
    assert [row.id for row in ROWS] == [f"Z{number}" for number in range(len(ROWS))]


def test_texts_are_short_and_whole() -> None:
    for row in ROWS:
        assert row.question and len(row.question) <= 20
        assert row.meaning and not row.meaning.endswith(".")
