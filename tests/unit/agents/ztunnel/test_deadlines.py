"""One timer, many items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodenet.agents.ztunnel.deadlines import Deadlines

Until = Callable[[Callable[[], object]], None]


def test_items_expire_in_order_and_discarded_ones_never(
    loop: asyncio.AbstractEventLoop, until: Until
) -> None:
    expired: list[str] = []
    deadlines = Deadlines[str](loop, 0.02, expired.append)
    for item in "abcd":
        deadlines.add(item)
    deadlines.discard("b")
    deadlines.discard("never added")
    until(lambda: len(expired) == 3)
    assert expired == ["a", "c", "d"]
    assert len(deadlines) == 0


def test_an_item_added_while_the_timer_runs_gets_its_full_time(
    loop: asyncio.AbstractEventLoop, until: Until
) -> None:
    expired: dict[str, float] = {}
    deadlines = Deadlines[str](loop, 0.05, lambda item: expired.update({item: loop.time()}))
    deadlines.add("first")
    until(lambda: "first" in expired)
    deadlines.add("second")
    added = loop.time()
    until(lambda: "second" in expired)
    assert expired["second"] - added >= 0.049


def test_an_expiry_may_discard_others_and_closing_forgets_all(
    loop: asyncio.AbstractEventLoop, until: Until
) -> None:
    expired: list[str] = []

    def expire(item: str) -> None:
        expired.append(item)
        deadlines.discard("b")

    deadlines = Deadlines[str](loop, 0.02, expire)
    deadlines.add("a")
    until(lambda: expired)
    deadlines.add("c")
    deadlines.close()
    assert len(deadlines) == 0
    marks: list[None] = []
    loop.call_later(0.04, marks.append, None)
    until(lambda: marks)
    assert expired == ["a"]
