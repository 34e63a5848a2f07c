"""Names to addresses, in threads that nobody waits for."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from nodenet.agents.konnectivity import agent_resolver
from nodenet.agents.konnectivity.agent_resolver import Address, Resolver, interleaved, literal
from tests.unit.agents.konnectivity.agent_scene import run, until


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("10.0.0.1", socket.AF_INET),
        ("fd00::1", socket.AF_INET6),
        ("::ffff:10.0.0.1", socket.AF_INET6),
        ("localhost", None),
        ("fe80::1%eth0", None),
        ("10.1", None),
        ("", None),
    ],
)
def test_literals(host: str, family: int | None) -> None:
    found = literal(host, 80)
    assert found == (None if family is None else (family, (host, 80)))


def test_families_take_turns() -> None:
    four = [(socket.AF_INET, (str(n), 1)) for n in range(2)]
    six = [(socket.AF_INET6, (str(n), 1)) for n in range(3)]
    assert interleaved([*six, *four]) == [six[0], four[0], six[1], four[1], six[2]]
    assert interleaved([]) == []


def test_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[Address]:
        resolver = Resolver(asyncio.get_running_loop())
        return await resolver.addresses("localhost", 80)

    assert (socket.AF_INET, ("127.0.0.1", 80)) in run(work())


def test_a_name_that_is_none() -> None:
    async def work() -> None:
        resolver = Resolver(asyncio.get_running_loop())
        with pytest.raises(socket.gaierror):
            await resolver.addresses("x" * 70 + ".invalid", 80)

    run(work())


def test_a_resolver_that_hangs_holds_up_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    real = socket.getaddrinfo

    def look_up(host: str, *rest: int) -> object:
        if host == "hangs":
            go.wait(10)
        return real("127.0.0.1", *rest)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(agent_resolver, "MAX_THREADS", 4)

    async def work() -> None:
        resolver = Resolver(asyncio.get_running_loop())
        answers: list[object] = []
        for _ in range(3):
            resolver.resolve("hangs", 80, 0, answers.append)
        for _ in range(20):
            assert await resolver.addresses("answers", 80)
        for _ in range(6):
            resolver.resolve("hangs", 80, 0, answers.append)
        resolver.resolve("answers", 80, 0, answers.append)
        await asyncio.sleep(0.1)
        assert not answers, "all threads hang"
        go.set()
        await until(lambda: len(answers) == 10, "all are answered in the end")
        resolver.close()
        resolver.resolve("answers", 80, 0, answers.append)
        await asyncio.sleep(0.1)
        assert len(answers) == 10, "nothing is told after the end"

    run(work())


def test_what_nobody_waits_for_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the name server is silent dials are given up: the next name must not wait for them."""
    go, asked = threading.Event(), []
    real = socket.getaddrinfo

    def look_up(host: str, *rest: int) -> object:
        asked.append(host)
        if host == "hangs":
            go.wait(10)
        return real("127.0.0.1", *rest)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(agent_resolver, "MAX_THREADS", 2)

    async def work() -> None:
        resolver = Resolver(asyncio.get_running_loop())
        answers: list[object] = []
        lookups = [resolver.resolve("hangs", 80, 0, answers.append) for _ in range(1000)]
        await until(lambda: len(asked) == 2, "both threads hang")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await resolver.addresses("hangs", 80)
        assert resolver.waiting == 998
        for lookup in lookups:
            resolver.forget(lookup)
        assert not resolver.waiting
        go.set()
        assert await resolver.addresses("answers", 80)
        assert asked == ["hangs", "hangs", "answers"] and not answers
        resolver.close()

    run(work())


def test_threads_end_with_their_resolver() -> None:
    async def work() -> None:
        before = threading.active_count()
        resolver = Resolver(asyncio.get_running_loop())
        assert await resolver.addresses("127.0.0.1", 80)
        resolver.close()
        await until(lambda: threading.active_count() <= before, "no thread is left")

    run(work())
