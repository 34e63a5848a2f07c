"""Markers of every test: what needs root or BPF is skipped with the reason where there is none."""

from __future__ import annotations

import os

import pytest

from tests import requirements


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs before any fixture of the test."""
    markers = [name for name in requirements.REQUIREMENTS if item.get_closest_marker(name)]
    outcome, why = requirements.judge(markers, os.environ)
    if outcome == "fail":
        pytest.fail(f"{why} (required here by CI or NODENET_REQUIRE)", pytrace=False)
    if outcome == "skip":
        pytest.skip(why)
