"""Leases as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.kube.leases import is_valid, make, micro_time

NOW = 1_790_000_000.25


def test_a_lease_is_valid_for_its_time() -> None:
    lease = make("n", holder="h", seconds=30, labels={"a": "b"}, now=NOW)
    assert lease["spec"]["renewTime"] == micro_time(NOW) == "2026-09-21T14:13:20.250000Z"
    assert lease["metadata"] == {"name": "n", "labels": {"a": "b"}}
    assert is_valid(lease, NOW + 29.9) and not is_valid(lease, NOW + 30.1)


def test_a_renewal_names_what_it_replaces() -> None:
    lease = make("n", holder="h", seconds=30, labels={}, now=NOW, version="7")
    assert lease["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    ("spec", "valid"),
    [
        ({"acquireTime": micro_time(NOW), "leaseDurationSeconds": 30}, True),
        ({"renewTime": "2026-09-21T16:13:20+02:00", "leaseDurationSeconds": 30}, True),
        ({"renewTime": micro_time(NOW)}, False),
        ({"leaseDurationSeconds": 30}, False),
        ({"renewTime": "yesterday", "leaseDurationSeconds": 30}, False),
        ({"renewTime": 5, "leaseDurationSeconds": 30}, False),
        ({}, False),
        (None, False),
    ],
)
def test_odd_leases(spec: dict[str, Any] | None, valid: bool) -> None:
    assert is_valid({"spec": spec}, NOW + 1) is valid


@given(st.text(max_size=40), st.integers())
def test_any_time_is_judged(moment: str, seconds: int) -> None:
    is_valid({"spec": {"renewTime": moment, "leaseDurationSeconds": seconds}}, NOW)
