"""The metadata by which two of ours know each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity.extensions import (
    LEAST_WINDOW_BYTES,
    MOST_WINDOW_BYTES,
    NONE,
    OURS,
    Extensions,
    parse,
)


@given(st.booleans(), st.just(0) | st.integers(LEAST_WINDOW_BYTES, MOST_WINDOW_BYTES))
def test_what_is_named_is_read(half_close: bool, window: int) -> None:
    named = Extensions(half_close, window)
    assert parse(named.text()) == named


@pytest.mark.parametrize(
    "text",
    [None, "", "window", "window=", "window=-1", "window=1", "window=99999999999", "teleport"],
)
def test_what_cannot_be_is_as_if_not_named(text: str | None) -> None:
    assert parse(text) == NONE


def test_unknown_names_beside_known_ones_are_skipped() -> None:
    assert parse(" half-close , teleport=2,window=65536") == Extensions(True, 65536)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse(text)


def test_flow_control_needs_both() -> None:
    assert OURS.shared_with(OURS)
    assert not OURS.shared_with(NONE)
    assert not NONE.shared_with(OURS)
