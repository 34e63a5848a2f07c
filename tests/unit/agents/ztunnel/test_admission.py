"""Room for connections, and who is woken when there is some again."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import pytest

from nodenet.agents.ztunnel.admission import (
    PASSED_ON_FILES,
    RESERVED_FILES,
    TUNNELLED_FILES,
    Admission,
)
from nodenet.agents.ztunnel.logs import LineBudget

Until = Callable[[Callable[[], object]], None]


class Sleeper:
    """A paused listener, as far as it is known here."""

    def __init__(self) -> None:
        self.woken = 0

    def rearm(self) -> None:
        self.woken += 1


def admission(loop: asyncio.AbstractEventLoop, connections: int) -> Admission:
    return Admission(loop, RESERVED_FILES + 2 * connections, LineBudget(loop))


def test_two_descriptors_a_connection_and_some_kept_back(
    loop: asyncio.AbstractEventLoop,
) -> None:
    room = admission(loop, 2)
    assert room.has_room()
    room.opened(PASSED_ON_FILES)
    room.opened(PASSED_ON_FILES)
    assert not room.has_room()
    room.closed(PASSED_ON_FILES)
    assert room.has_room()
    room.close()


def test_a_tunnelled_connection_needs_one(loop: asyncio.AbstractEventLoop) -> None:
    room = admission(loop, 2)
    for _ in range(3):
        assert room.has_room()
        room.opened(TUNNELLED_FILES)
    # one is left, and the next connection may be passed on
    assert not room.has_room()
    room.closed(TUNNELLED_FILES)
    assert room.has_room()
    room.close()


def test_even_a_tiny_limit_allows_one(loop: asyncio.AbstractEventLoop) -> None:
    room = Admission(loop, 10, LineBudget(loop))
    assert room.has_room()
    room.close()


def test_the_next_end_wakes_the_paused(loop: asyncio.AbstractEventLoop, until: Until) -> None:
    room = admission(loop, 1)
    one, other, closed = Sleeper(), Sleeper(), Sleeper()
    room.opened(PASSED_ON_FILES)
    for sleeper in (one, other, closed):
        room.paused(sleeper)  # type: ignore[arg-type]  # only `rearm` is used
    room.forget(closed)  # type: ignore[arg-type]
    room.closed(PASSED_ON_FILES)
    assert not one.woken  # its descriptors come free at the end of the turn
    until(lambda: one.woken)
    assert (one.woken, other.woken, closed.woken) == (1, 1, 0)
    room.close()


def test_without_an_end_they_are_tried_again_after_a_while(
    loop: asyncio.AbstractEventLoop, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    room, sleeper = admission(loop, 1), Sleeper()
    with caplog.at_level(logging.WARNING):
        room.paused(sleeper)  # type: ignore[arg-type]
    assert "out of file descriptors (limit 258, 0 connections)" in caplog.text
    until(lambda: sleeper.woken)
    room.close()


def test_a_spare_descriptor_is_lent_once_and_taken_back(
    loop: asyncio.AbstractEventLoop, until: Until
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    room, sleeper = admission(loop, 1), Sleeper()
    assert room.lend()
    assert not room.lend()
    assert len(os.listdir("/proc/self/fd")) == before
    room.paused(sleeper)  # type: ignore[arg-type]
    until(lambda: sleeper.woken)
    assert room.lend()
    room.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_nobody_is_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    room = admission(loop, 5)
    loop.run_until_complete(room.nobody())
    room.opened(PASSED_ON_FILES)
    room.opened(PASSED_ON_FILES)
    waiting = loop.create_task(room.nobody())
    room.closed(PASSED_ON_FILES)
    loop.run_until_complete(asyncio.sleep(0))
    assert not waiting.done()
    room.closed(PASSED_ON_FILES)
    loop.run_until_complete(waiting)
    room.close()
