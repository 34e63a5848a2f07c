"""Delivery of readiness: to whom, when, and what happens when a target fails."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Iterator

import pytest

from nodenet.agents.ztunnel.poller import LISTENER, STREAM, Poller
from tests.unit.agents.ztunnel.tcp import connected

Until = Callable[[Callable[[], object]], None]


class Recorder:
    """A target that keeps what it is told and then does what it was given to do."""

    def __init__(self, react: Callable[[int], object] = lambda mask: None) -> None:
        self.masks: list[int] = []
        self.resumed = 0
        self.was_broken = False
        self._react = react

    def event(self, mask: int) -> None:
        self.masks.append(mask)
        self._react(mask)

    def resume(self) -> None:
        self.resumed += 1
        self._react(0)

    def broken(self) -> None:
        self.was_broken = True


@pytest.fixture
def poller(loop: asyncio.AbstractEventLoop) -> Iterator[Poller]:
    """A poller of the loop."""
    made = Poller(loop)
    yield made
    made.close()


def test_all_targets_may_be_cut_at_once(poller: Poller) -> None:
    targets = {}
    for direct in (False, True):
        app, proxy = connected()
        target = Recorder()
        (poller.add_direct if direct else poller.add)(proxy.fileno(), select.EPOLLIN, target)
        targets[target] = (app, proxy)
    poller.cut()
    for target, (app, proxy) in targets.items():
        assert target.was_broken
        poller.retire(proxy.fileno(), proxy)
        app.close()
    assert len(poller) == 0


def test_a_change_is_told_once(poller: Poller, until: Until) -> None:
    app, proxy = connected()
    target = Recorder()
    poller.add(proxy.fileno(), STREAM, target)
    until(lambda: target.masks)
    assert target.masks == [select.EPOLLOUT]
    app.sendall(b"x")
    until(lambda: len(target.masks) == 2)
    app.close()
    until(lambda: len(target.masks) == 3)
    assert target.masks[1] & select.EPOLLIN and target.masks[2] & select.EPOLLRDHUP
    poller.retire(proxy.fileno(), proxy)
    assert proxy.fileno() == -1 and len(poller) == 0


def test_who_is_retired_in_a_turn_is_not_told_in_that_turn(poller: Poller, until: Until) -> None:
    pairs = [connected(), connected()]
    targets: list[Recorder] = []
    open_at_the_end: list[bool] = []

    def retire_the_other(me: int) -> Callable[[int], None]:
        def react(mask: int) -> None:
            other = pairs[1 - me].proxy
            poller.retire(other.fileno(), other)
            # its number must not be free for a new socket before the turn is over
            open_at_the_end.append(other.fileno() >= 0)

        return react

    for me, pair in enumerate(pairs):
        targets.append(Recorder(retire_the_other(me)))
        poller.add(pair.proxy.fileno(), STREAM, targets[me])
    until(lambda: open_at_the_end)
    assert open_at_the_end == [True]
    assert sorted(len(t.masks) for t in targets) == [0, 1]
    assert sorted(p.proxy.fileno() >= 0 for p in pairs) == [False, True]
    for pair in pairs:
        pair.app.close()
        pair.proxy.close()


def test_a_failing_target_is_logged_and_ends_alone(
    poller: Poller, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(mask: int) -> None:
        raise ValueError("bug")

    one, other = connected(), connected()
    failing, healthy = Recorder(fail), Recorder()
    poller.add(one.proxy.fileno(), STREAM, failing)
    poller.add(other.proxy.fileno(), STREAM, healthy)
    until(lambda: failing.was_broken and healthy.masks)
    assert "bug: Recorder failed" in caplog.text and "ValueError: bug" in caplog.text
    other.app.sendall(b"x")
    until(lambda: len(healthy.masks) == 2)
    for pair in (one, other):
        poller.retire(pair.proxy.fileno(), pair.proxy)
        pair.app.close()


def test_again_is_the_next_turn_and_the_end_comes_after_every_target(
    poller: Poller, until: Until
) -> None:
    order: list[str] = []

    def react(mask: int) -> None:
        order.append("event" if mask else "resumed")
        poller.at_end(lambda: order.append("end"))
        if mask:
            poller.again(target)

    target = Recorder(react)
    app, proxy = connected()
    poller.add(proxy.fileno(), STREAM, target)
    until(lambda: target.resumed)
    assert order == ["event", "end", "resumed", "end"]
    poller.retire(proxy.fileno(), proxy)
    app.close()


def test_a_silenced_descriptor_is_told_nothing_and_a_listener_again_and_again(
    poller: Poller, until: Until
) -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    target = Recorder()
    poller.add(read, LISTENER, target)
    os.write(write, b"x")
    until(lambda: len(target.masks) >= 3)
    poller.modify(read, 0)
    before = len(target.masks)
    other = connected()
    witness = Recorder()
    poller.add(other.proxy.fileno(), STREAM, witness)
    until(lambda: witness.masks)
    assert len(target.masks) == before
    poller.retire(other.proxy.fileno(), other.proxy)
    other.app.close()
    os.close(read)
    os.close(write)
