"""Choosing among endpoints by weight."""

from __future__ import annotations

from collections import Counter

import pytest

from nodenet.mesh.candidates import Candidates
from nodenet.mesh.services import endpoint_of
from tests.unit.mesh.building import Fixed, pod, rng


def weighted(*capacities: int) -> Candidates:
    endpoints = tuple(
        endpoint_of(pod(f"p{i}", "10.0.0.1", uid=f"p{i}", capacity=capacity), ())
        for i, capacity in enumerate(capacities)
    )
    if set(capacities) == {1}:
        return Candidates(endpoints, None)
    sums = tuple(sum(capacities[: i + 1]) for i in range(len(capacities)))
    return Candidates(endpoints, sums)


def chosen(candidates: Candidates, point: float) -> str | None:
    found = candidates.choose(Fixed(point))
    return None if found is None else found.uid


@pytest.mark.parametrize(
    ("capacities", "point", "expected"),
    [
        ((1, 1, 1), 0.0, "p0"),
        ((1, 1, 1), 0.34, "p1"),
        ((1, 1, 1), 0.999999, "p2"),
        ((3, 1), 0.74, "p0"),
        ((3, 1), 0.76, "p1"),
        ((0, 1), 0.0, "p1"),
        ((1, 0), 0.999999, "p0"),
        ((1, 0, 1), 0.5, "p2"),
        ((0, 0), 0.5, None),
        ((), 0.5, None),
        ((2**32 - 1, 2**32 - 1), 1 - 2**-53, "p1"),
    ],
)
def test_choice(capacities: tuple[int, ...], point: float, expected: str | None) -> None:
    assert chosen(weighted(*capacities), point) == expected


def test_frequencies_are_the_shares() -> None:
    candidates = weighted(1, 2, 0, 5)
    random = rng()
    drawn = Counter(
        found.uid for _ in range(8000) if (found := candidates.choose(random)) is not None
    )
    shares = {endpoint.uid: share for endpoint, share in candidates.shares()}
    assert shares == {"p0": 0.125, "p1": 0.25, "p3": 0.625}
    assert {uid: round(count / 8000, 1) for uid, count in drawn.items()} == {
        "p0": 0.1, "p1": 0.2, "p3": 0.6,
    }  # fmt: skip


def test_listed_with_the_chosen_one_first() -> None:
    listed = weighted(1, 2, 1).listed("p2")
    assert [(each.name, each.probability, each.chosen) for each in listed] == [
        ("p2", 0.25, True), ("p1", 0.5, False), ("p0", 0.25, False),
    ]  # fmt: skip
