"""Servers on a free port or a socket file, under both event loops, and clients that write bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine function to its end on a fresh loop of either kind."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:

        def call(main: Callable[[], Awaitable[Any]]) -> Any:
            async def bounded() -> Any:
                async with asyncio.timeout(20):
                    return await main()

            return runner.run(bounded())

        yield call
