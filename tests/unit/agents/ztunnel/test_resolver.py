"""Hostnames of workloads: asked once, remembered for a while, never waited for."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nodenet.agents.ztunnel import resolver as module
from nodenet.agents.ztunnel.resolver import Resolver
from nodenet.endpoint import IPAddress

Until = Callable[[Callable[[], object]], None]
Answer = Sequence[IPAddress] | None


@pytest.fixture
def resolver(loop: asyncio.AbstractEventLoop) -> Iterator[Resolver]:
    made = Resolver(loop)
    yield made
    made.close()


class Dns:
    """In place of the C library's resolver, which asks whoever this machine has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, list[str] | Exception] = {}
        self.goes_on = threading.Event()
        self.goes_on.set()
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, port: object, **_: Any) -> list[tuple[object, ...]]:
        self.asked.append(host)
        assert self.goes_on.wait(60)
        answer = self.answers.get(host, socket.gaierror(socket.EAI_NONAME, "not known"))
        if isinstance(answer, Exception):
            raise answer
        return [(0, 0, 0, "", (address, 0)) for address in answer]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    return Dns(monkeypatch)


def test_a_name_of_this_host(resolver: Resolver, until: Until) -> None:
    """With the C library's own resolver: the file of hosts."""
    found: list[Answer] = []
    resolver.resolve("localhost", found.append)
    until(lambda: found)
    assert found[0] and all(ip.is_loopback for ip in found[0])


def test_many_that_ask_are_one_look_up(resolver: Resolver, dns: Dns, until: Until) -> None:
    dns.answers["a.example"] = ["10.0.0.1", "fd00::1%eth0", "10.0.0.1"]
    dns.goes_on.clear()
    found: list[Answer] = []
    for _ in range(100):
        resolver.resolve("a.example", found.append)
    assert not found
    dns.goes_on.set()
    until(lambda: len(found) == 100)
    assert dns.asked == ["a.example"]
    wanted = (ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("fd00::1"))
    assert set(map(tuple, map(list, (a or () for a in found)))) == {wanted}
    # and it is remembered
    resolver.resolve("a.example", found.append)
    assert len(found) == 101 and len(dns.asked) == 1


def test_an_answer_gets_old(
    resolver: Resolver, dns: Dns, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.0)
    dns.answers["a.example"] = ["10.0.0.1"]
    found: list[Answer] = []
    for count in (1, 2):
        resolver.resolve("a.example", found.append)
        until(lambda count=count: len(found) == count)  # type: ignore[misc]
    assert len(dns.asked) == 2


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (socket.gaierror(socket.EAI_NODATA, "no address"), ()),
        (socket.gaierror(socket.EAI_NONAME, "not known"), None),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), None),
        (UnicodeError("label too long"), None),
        (OSError("no files"), None),
    ],
)
def test_no_answer(
    resolver: Resolver, dns: Dns, until: Until, error: Exception, answer: Answer
) -> None:
    """That a name has no addresses is an answer, that nobody knows it is none."""
    dns.answers["a.example"] = error
    found: list[Answer] = []
    resolver.resolve("a.example", found.append)
    until(lambda: found)
    assert found == [answer]


def test_look_ups_are_bounded(
    resolver: Resolver, dns: Dns, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 10)
    dns.goes_on.clear()
    found: list[Answer] = []
    for number in range(11):
        resolver.resolve(f"h{number}.example", found.append)
    assert found == [None]  # the eleventh, at once
    dns.goes_on.set()
    until(lambda: len(found) == 11)


def test_answers_are_bounded(
    resolver: Resolver, dns: Dns, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWERS", 5)
    found: list[Answer] = []
    for number in range(10):
        resolver.resolve(f"h{number}.example", found.append)
        until(lambda n=number: len(found) == n + 1)  # type: ignore[misc]
    resolver.resolve("h9.example", found.append)
    assert len(found) == 11 and len(dns.asked) == 10
    resolver.resolve("h0.example", found.append)
    until(lambda: len(found) == 12)
    assert len(dns.asked) == 11


def test_nobody_is_told_after_the_end(
    loop: asyncio.AbstractEventLoop, dns: Dns, until: Until
) -> None:
    made = Resolver(loop)
    dns.goes_on.clear()
    found: list[Answer] = []
    made.resolve("a.example", found.append)
    until(lambda: dns.asked)
    made.close()
    dns.goes_on.set()
    end = loop.time() + 0.1
    until(lambda: loop.time() > end)
    assert not found
