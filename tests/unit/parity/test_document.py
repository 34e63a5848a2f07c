"""docs/parity.md says what is declared, and every declaration is shown by a test."""

from __future__ import annotations

from nodenet.capture.rows import IN_ROWS, OUT_ROWS
from tests.root.parity import document
from tests.root.parity.rows import ROWS, RULES

SHOWN = list(document.tests())


def test_the_document_is_current() -> None:
    # run: python -m tests.root.parity.document
    assert document.DOCUMENT.read_text() == document.document(SHOWN)


def test_every_row_is_shown_by_a_test() -> None:
    assert document.rows_without_tests(SHOWN) == []


def test_every_row_of_the_decision_order_is_shown_by_a_test() -> None:
    assert {rule for test in SHOWN for rule in test.rules} == RULES


def test_the_reference_has_34_rows_and_none_is_left_out() -> None:
    ids = [row.id for row in ROWS]
    assert len(ids) == len(set(ids))
    assert [i for i in ids if i.startswith("P")] == [f"P{n}" for n in range(1, 35)]


def test_what_is_not_as_required_has_a_reason() -> None:
    for row in ROWS:
        if not all(text.startswith("as required") for text in (row.ebpf, row.iptables)):
            assert row.differs, row.id


def test_the_decision_order_names_rows_that_are_shown_with_it() -> None:
    for decision in OUT_ROWS + IN_ROWS:
        for parity in decision.parity:
            assert any(parity in t.rows for t in SHOWN), (decision.id, parity)


def test_a_test_names_rows_and_rules() -> None:
    assert len(SHOWN) > 80
    assert all(test.rows and test.rules for test in SHOWN)
