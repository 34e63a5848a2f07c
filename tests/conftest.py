"""Markers of every test: what needs root or BPF is skipped with the reason where there is none.

The examples of hypothesis are the same in every run and have no deadline, so that a test fails for
what changed and not for what was drawn or how fast the machine is. To look for more by hand:
``--hypothesis-profile=default --hypothesis-seed=N``.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests import requirements

settings.register_profile(
    "nodenet",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("nodenet")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs before any fixture of the test."""
    markers = [name for name in requirements.REQUIREMENTS if item.get_closest_marker(name)]
    outcome, why = requirements.judge(markers, os.environ)
    if outcome == "fail":
        pytest.fail(f"{why} (required here by CI or NODENET_REQUIRE)", pytrace=False)
    if outcome == "skip":
        pytest.skip(why)
