"""What both daemons do beside their work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nodenet.agents.konnectivity import process
from nodenet.rpc.malloc import GIVE_BACK_SECONDS


class Loop(asyncio.SelectorEventLoop):
    """Its one timer goes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[asyncio.TimerHandle] = []

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: object = None
    ) -> asyncio.TimerHandle:
        made = asyncio.TimerHandle(delay, callback, args, self)
        self.timers.append(made)
        return made


def test_unused_memory_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(process, "give_back", lambda: calls.append(None))
    loop = Loop()
    try:
        with process.memory_given_back(loop):
            for turn in range(1, 4):
                (timer,) = loop.timers
                assert timer.when() == GIVE_BACK_SECONDS
                loop.timers.clear()
                timer._run()
                assert len(calls) == turn
            (timer,) = loop.timers
            assert not timer.cancelled()
        assert timer.cancelled()
    finally:
        loop.close()
