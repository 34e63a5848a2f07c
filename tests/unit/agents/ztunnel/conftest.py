"""A loop that complains, and waiting on it for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import uvloop

#: Seconds any condition may take on a busy machine.
DEADLINE = 30.0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A uvloop in debug mode; what an event callback raises fails the test."""
    made = uvloop.new_event_loop()
    made.set_debug(True)
    errors: list[dict[str, object]] = []
    made.set_exception_handler(lambda _loop, context: errors.append(context))
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()
    assert not errors


@pytest.fixture
def until(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], object]], None]:
    """Runs the loop until the condition holds."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                await asyncio.sleep(0.001)

    return lambda condition: loop.run_until_complete(wait(condition))
