"""The worker's interface, with the worker in this process on a loop in another thread."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import uvloop

from nodenet.agents.ztunnel.counters import PodSnapshot
from nodenet.agents.ztunnel.pod import pod_of_record
from nodenet.agents.ztunnel.source_ports import SourcePorts
from nodenet.agents.ztunnel.worker import LocalWorker
from nodenet.kernel.netns import NetNs
from tests.root.agents.ztunnel.proxied import (
    DEADLINE,
    POD4,
    Proxied,
    accept,
    ends_in_reset,
    is_reset,
)

pytestmark = [pytest.mark.root]
T = TypeVar("T")
SEED = 7


class WorkerThread:
    """A loop with a worker on it; `call` runs something there."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._main()))
        self._thread.start()
        assert self._ready.wait(DEADLINE)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        with LocalWorker(
            self._loop,
            connect_seconds=5.0,
            max_connections=3,
            max_files=4096,
            rng=random.Random(SEED),
        ) as self.worker:
            self._ready.set()
            await self._stop.wait()

    def call(self, work: Callable[[LocalWorker], T]) -> T:
        async def there() -> T:
            return work(self.worker)

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(DEADLINE)

    def drain(self, seconds: float) -> int:
        future = asyncio.run_coroutine_threadsafe(self.worker.drain(seconds), self._loop)
        return future.result(DEADLINE + seconds)

    def snapshot(self) -> PodSnapshot:
        """Of the only pod."""
        [found] = self.call(lambda worker: worker.snapshot())
        return found

    def wait_for(self, condition: Callable[[PodSnapshot], object]) -> PodSnapshot:
        """The snapshot of the only pod as soon as it fulfils a condition."""
        return self.wait_until(lambda found: condition(found[0]))[0]

    def wait_until(self, condition: Callable[[list[PodSnapshot]], object]) -> list[PodSnapshot]:
        """The snapshots as soon as they fulfil a condition."""
        end = time.monotonic() + DEADLINE
        while not condition(found := self.call(lambda worker: worker.snapshot())):
            assert time.monotonic() < end, f"never: {found}"
            time.sleep(0.01)
        return found

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


@pytest.fixture
def worker(world: Proxied) -> Iterator[WorkerThread]:
    """A worker that serves the world's pod."""
    made = WorkerThread()
    try:
        made.call(lambda w: w.add_pod(pod_of_record(world.record()), NetNs.open(world.pod.path)))
        yield made
    finally:
        made.close()


def test_a_snapshot_counts_live_and_ended_connections(world: Proxied, worker: WorkerThread) -> None:
    with world.outbound() as (client, server), world.inbound() as (other, app):
        client.sendall(b"123")
        assert server.recv(10) == b"123"
        app.sendall(b"12345")
        assert other.recv(10) == b"12345"
        found = worker.snapshot()
        assert (found.accepted_out, found.accepted_in, found.active) == (1, 1, 2)
        assert (found.bytes_sent, found.bytes_received) == (8, 0)
        assert found.serving and found.name == world.pod.name
        assert found.cookie == world.record().netns_cookie
        assert not found.refused and not found.dial_failed and not found.reset
    found = worker.wait_for(lambda s: s.active == 0)
    assert (found.bytes_sent, found.bytes_received, found.reset) == (8, 0, 0)


def test_refusals_failures_and_resets_are_counted_by_cause(
    world: Proxied, worker: WorkerThread
) -> None:
    assert is_reset(world.out, POD4, 9)
    assert is_reset(world.out, POD4, 15008)
    assert is_reset(world.pod, POD4, 15001)
    found = worker.wait_for(lambda s: s.dial_failed and sum(s.refused.values()) == 2)
    assert found.dial_failed == {"ECONNREFUSED": 1}
    assert sum(found.refused.values()) == 2 and found.refused["own-port"] >= 1
    with world.outbound() as (client, server):
        worker.call(lambda w: w.cut_pod(world.record().netns_cookie))
        assert ends_in_reset(client) and ends_in_reset(server)


def test_a_removed_pod_is_known_until_its_last_connection(
    world: Proxied, worker: WorkerThread
) -> None:
    cookie = world.record().netns_cookie
    with world.outbound():
        worker.call(lambda w: w.remove_pod(cookie))
        found = worker.snapshot()
        assert (found.serving, found.active) == (False, 1)
        worker.call(lambda w: w.remove_pod(cookie))
        # enrolled again meanwhile: two of the same cookie, each with its own counters
        pod = pod_of_record(world.record())
        worker.call(lambda w: w.add_pod(pod, NetNs.open(world.pod.path)))
        both = worker.call(lambda w: w.snapshot())
        assert sorted((s.serving, s.active) for s in both) == [(False, 1), (True, 0)]
    worker.wait_until(lambda found: len(found) == 1)
    assert worker.snapshot().serving


def test_drain_says_how_many_it_cut(world: Proxied, worker: WorkerThread) -> None:
    with world.outbound() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        assert worker.drain(0.05) == 1
        assert ends_in_reset(client) and ends_in_reset(server)
    assert worker.call(lambda w: w.snapshot()) == []
    assert worker.drain(0.0) == 0


def test_a_dial_avoids_the_ports_of_live_clients(world: Proxied, worker: WorkerThread) -> None:
    """A dial from the client's own port would arrive in the connection that is carried."""
    rng = random.Random(SEED)
    ports = SourcePorts(rng).propose()
    first, second = next(ports), next(ports)
    with world.listen(world.pod) as listener:
        port = listener.getsockname()[1]
        with world.connect(world.out, POD4, port, source_port=first), accept(listener) as app:
            assert app.getpeername()[1] == second


def test_a_pod_may_have_so_many_connections(world: Proxied, worker: WorkerThread) -> None:
    with world.outbound(), world.outbound(), world.outbound():
        assert is_reset(world.out, POD4, 80)
        assert worker.snapshot().refused == {"over-limit": 1}
