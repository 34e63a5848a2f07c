"""The acceptor, by Unix sockets: how many at a time, without a free descriptor, and its end."""

from __future__ import annotations

import contextlib
import os
import resource
import select
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodenet.agents.konnectivity.poller_transport import ACCEPT_BATCH, EXHAUSTED_SECONDS
from tests.unit.agents.konnectivity.agent_scene import until
from tests.unit.agents.konnectivity.transport_scene import (
    LOOPS,
    Recorder,
    UnixScene,
    descriptors,
    echo,
    on_loop,
    over,
    take,
)

Run = Callable[[Callable[[UnixScene], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a test on a loop of either kind."""
    return on_loop(request.param, lambda: UnixScene(tmp_path))


def test_more_than_a_batch_is_accepted_and_each_has_its_answer(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        server = scene.serve(lambda: Recorder(data=echo))
        clients = [scene.dial(b"%4d" % number) for number in range(3 * ACCEPT_BATCH + 1)]
        server.event(select.EPOLLIN)
        assert len(scene.protocols) == ACCEPT_BATCH
        assert scene.protocols[0].got == b"   0", "read in the same turn"
        for number, client in enumerate(clients):
            assert await take(client, 4) == b"%4d" % number
        assert len(scene.protocols) == len(clients)
        await scene.sleeps()
        for client in clients:
            client.close()
        for protocol in scene.protocols:
            assert await over(protocol) is None
        assert len(scene.poller) == 1

    run(test)


@contextlib.contextmanager
def no_descriptor_is_free() -> Iterator[Callable[[], None]]:
    """Until the function it gives is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def free() -> None:
        while taken:
            os.close(taken.pop())

    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield free
    finally:
        free()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_free_descriptor_it_is_tried_again_later(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(scene: UnixScene) -> None:
        scene.serve(lambda: Recorder(data=echo))
        open_one, client = scene.dial(b"one"), scene.dial(b"two")
        assert await take(open_one, 3) == b"one" and await take(client, 3) == b"two"
        client = scene.dial(b"three")
        with no_descriptor_is_free() as free:
            await until(lambda: "cannot accept" in caplog.text, "it waits")
            due = scene.loop.time() + 3 * EXHAUSTED_SECONDS
            await until(lambda: scene.loop.time() > due, "it is tried again")
            open_one.send(b"still")
            assert await take(open_one, 5) == b"still"
            free()
            assert await take(client, 5) == b"three"
        assert len(caplog.records) == 1, "it is said once"
        await scene.sleeps()

    run(test)


def test_a_listener_that_waits_for_a_descriptor_can_be_closed(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(scene: UnixScene) -> None:
        server = scene.serve(Recorder)
        client = scene.dial(b"one")
        with no_descriptor_is_free():
            await until(lambda: "cannot accept" in caplog.text, "it waits")
            server.close()
        due = scene.loop.time() + 2 * EXHAUSTED_SECONDS
        await until(lambda: scene.loop.time() > due, "it would have been tried again")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert scene.protocols == []

    run(test)


def test_connections_go_on_when_their_listener_is_closed(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        server = scene.serve(lambda: Recorder(data=echo))
        client = scene.dial(b"one")
        assert await take(client, 3) == b"one"
        before = descriptors()
        server.close()
        server.close()
        assert descriptors() == before - 1
        with pytest.raises(ConnectionRefusedError):
            scene.dial(b"two")
        client.send(b"still")
        assert await take(client, 5) == b"still"

    run(test)


def test_a_listener_that_is_closed_within_a_batch_accepts_no_more(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        server = scene.serve(lambda: Recorder(made=lambda me: server.close()))
        clients = [scene.dial(b"") for _ in range(3)]
        await until(lambda: bool(scene.protocols), "one is accepted")
        with pytest.raises(ConnectionResetError):
            await take(clients[1])
        assert len(scene.protocols) == 1

    run(test)


def test_who_listens_on_the_same_socket_is_no_matter_of_a_closed_listener(run: Run) -> None:
    async def test(scene: UnixScene) -> None:
        sock = scene.open()
        first = scene.serve(Recorder, sock.dup())
        first.close()
        client = scene.dial(b"one")
        await scene.sleeps()
        scene.serve(lambda: Recorder(data=echo), sock.dup())
        assert await take(client, 3) == b"one"

    run(test)
