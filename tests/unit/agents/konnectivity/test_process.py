"""What both daemons do beside their work."""

from __future__ import annotations

import asyncio

import pytest

from nodenet.agents.konnectivity import process


def test_unused_memory_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        third = asyncio.Event()
        calls: list[int] = []

        def give_back() -> bool:
            calls.append(len(calls))
            if len(calls) == 3:
                third.set()
            return True

        monkeypatch.setattr(process, "GIVE_BACK_SECONDS", 0.01)
        monkeypatch.setattr(process, "give_back", give_back)
        with process.memory_given_back(loop):
            async with asyncio.timeout(30):
                await third.wait()
        count = len(calls)
        await asyncio.sleep(0.05)  # five more, if it went on
        assert len(calls) == count

    asyncio.run(test())
