"""Leases as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.kube.leases import LeaseWatch, make, micro_time, seconds_left

NOW = 1_790_000_000.25


def test_a_lease_is_valid_for_its_time() -> None:
    lease = make("n", holder="h", seconds=30, labels={"a": "b"}, now=NOW)
    assert lease["spec"]["renewTime"] == micro_time(NOW) == "2026-09-21T14:13:20.250000Z"
    assert lease["metadata"] == {"name": "n", "labels": {"a": "b"}}
    assert seconds_left(lease, NOW + 29) == pytest.approx(1)
    assert seconds_left(lease, NOW + 31) == pytest.approx(-1)


def test_a_renewal_names_what_it_replaces() -> None:
    lease = make("n", holder="h", seconds=30, labels={}, now=NOW, version="7")
    assert lease["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ({"acquireTime": micro_time(NOW), "leaseDurationSeconds": 30}, True),
        ({"renewTime": "2026-09-21T16:13:20+02:00", "leaseDurationSeconds": 30}, True),
        ({"renewTime": micro_time(NOW)}, False),
        ({"leaseDurationSeconds": 30}, False),
        ({"renewTime": "yesterday", "leaseDurationSeconds": 30}, False),
        ({"renewTime": 5, "leaseDurationSeconds": 30}, False),
        ({}, False),
        (None, False),
        (["renewTime"], False),
        ("renewTime", False),
    ],
)
def test_odd_leases(spec: Any, known: bool) -> None:
    lease = {"metadata": {"name": "a"}, "spec": spec}
    left = seconds_left(lease, NOW + 1)
    assert (left is not None) is known
    watch = LeaseWatch()
    watch.look([lease], now=NOW + 1, steady=0)
    assert watch.is_held(lease, 0) is known
    assert watch.is_expired(lease, 60, 30), "nothing has happened to it"


@given(st.text(max_size=40), st.integers())
def test_any_time_is_judged(moment: str, seconds: int) -> None:
    lease = {"spec": {"renewTime": moment, "leaseDurationSeconds": seconds}}
    seconds_left(lease, NOW)
    watch = LeaseWatch()
    watch.look([lease], now=NOW, steady=0)
    watch.is_held(lease, 1)


def test_a_lease_that_is_renewed_is_held_whatever_the_clocks_say() -> None:
    """This machine's jumps by a day, there and back; the server renews every 15 s."""
    watch = LeaseWatch()
    for step in range(12):
        steady = 15.0 * step
        jump = 86_400.0 if 3 <= step < 6 else -86_400.0 if step >= 9 else 0.0
        lease = make("a", holder="a", seconds=30, labels={}, now=NOW + steady)
        watch.look([lease], now=NOW + steady + jump, steady=steady)
        for later in (0.0, 14.9):
            assert watch.is_held(lease, steady + later), step
            assert not watch.is_expired(lease, steady + later, 30)


@pytest.mark.parametrize("wrong", [-86_400.0, 0.0, 86_400.0])
def test_a_server_that_died_is_expired_by_the_steady_clock(wrong: float) -> None:
    watch = LeaseWatch()
    lease = make("a", holder="a", seconds=30, labels={}, now=NOW)
    for steady in range(0, 60, 5):
        watch.look([lease], now=NOW + steady + wrong, steady=steady)
        assert watch.is_held(lease, steady) is (steady < 30 and wrong <= 0)
        assert watch.is_expired(lease, steady, 30) is (steady >= 30)


def test_a_lease_first_seen_by_a_wrong_clock_is_believed_when_it_is_renewed() -> None:
    watch = LeaseWatch()
    first = make("a", holder="a", seconds=30, labels={}, now=NOW)
    watch.look([first], now=NOW + 3600, steady=0)
    assert not watch.is_held(first, 0) and not watch.is_expired(first, 29, 30)
    second = make("a", holder="a", seconds=30, labels={}, now=NOW + 15)
    watch.look([second], now=NOW + 3616, steady=16)
    assert watch.is_held(second, 45) and not watch.is_held(second, 47)


def test_what_is_not_listed_any_more_is_forgotten() -> None:
    watch = LeaseWatch()
    for number in range(100):
        lease = make(f"s{number}", holder="a", seconds=30, labels={}, now=NOW)
        watch.look([lease], now=NOW, steady=number)
    assert len(watch._seen) == 1
