"""Pairs as a person writes them."""

from __future__ import annotations

import pytest

from nodenet.errors import NotFound, UsageError
from nodenet.lab.plan import make_plan
from nodenet.lab.selection import parse_pairs

PLAN = make_plan()


def _names(*texts: str) -> list[tuple[str, str, int]]:
    return [(a.name, b.name, port) for a, b, port in parse_pairs(PLAN, texts)]


def test_pairs_are_read_by_both_names_with_commas_or_repeated() -> None:
    assert _names("a1:b2,lab/b1:a1", "a2:a1") == [
        ("a1", "b2", 8080), ("b1", "a1", 8080), ("a2", "a1", 8080),
    ]  # fmt: skip
    assert _names() == []


def test_a_port_and_the_service() -> None:
    assert _names("a1:a2:8081,a1:web.lab", "a2:lab/web.lab:80") == [
        ("a1", "a2", 8081), ("a1", "web.lab", 80), ("a2", "web.lab", 80),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, error",
    [
        ("a1", "--pairs a1: not a pair of pods; write e.g. a1:b2"),
        ("", "--pairs : not a pair of pods; write e.g. a1:b2"),
        ("a1:a1", "--pairs a1:a1: not a pair of pods; write e.g. a1:b2"),
        ("a1:b1:a2:b2", "--pairs a1:b1:a2:b2: not a pair of pods; write e.g. a1:b2"),
        ("a1:b1:a2", "--pairs a1:b1:a2: no port of b1; it has: 8080 8081"),
        ("a1:b1:80", "--pairs a1:b1:80: no port of b1; it has: 8080 8081"),
        ("a1:web.lab:8080", "--pairs a1:web.lab:8080: no port of web.lab; it has: 80"),
        (
            "b1:web.lab",
            "--pairs b1:web.lab: nothing routes from b1 to web.lab; it is there for: a1 a2",
        ),
    ],
)
def test_what_is_no_pair(text: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pairs(PLAN, [text])
    assert caught.value.line() == error


@pytest.mark.parametrize("text", ["a1:", ":a1", "a1:z9", "web.lab:a1"])
def test_who_is_not_there(text: str) -> None:
    with pytest.raises(NotFound, match="it has: a1 b1 a2 b2|no pod"):
        parse_pairs(PLAN, [text])


def test_a_plain_lab_has_no_service() -> None:
    with pytest.raises(NotFound, match=r"no pod web\.lab"):
        parse_pairs(make_plan(mesh=False), ["a1:web.lab"])
