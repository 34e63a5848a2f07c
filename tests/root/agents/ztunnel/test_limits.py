"""What happens at the edges: too many connections, no descriptors."""

from __future__ import annotations

import contextlib
import re
import resource
import select

import pytest

from nodenet.agents.ztunnel.admission import RESERVED_FILES
from tests.root.agents.ztunnel.proxied import (
    DEADLINE,
    OUT4,
    Proxied,
    ProxyProcess,
    accept,
    is_reset,
)

pytestmark = [pytest.mark.root]


def test_a_pod_over_its_limit_is_refused_and_served_again_below_it(world: Proxied) -> None:
    proxy = world.proxy("--max-connections=2", "--access-log")
    with world.outbound(), world.outbound():
        assert is_reset(world.pod, OUT4, 9)
        proxy.wait_for("refused: over-limit")
    proxy.wait_for_lines("\taccess\t", 2)
    with world.outbound() as (client, server):
        client.sendall(b"again")
        assert server.recv(10) == b"again"


def carry_all(world: Proxied, proxy: ProxyProcess, count: int) -> None:
    """So many connections at once, of which only some fit; in the end all have been carried."""
    with contextlib.ExitStack() as stack, world.listen(world.out) as listener:
        port = listener.getsockname()[1]
        waiting = [stack.enter_context(world.connect(world.pod, OUT4, port)) for _ in range(count)]
        for client in waiting:
            client.sendall(b"hello")
        proxy.wait_for("out of file descriptors")
        while waiting:
            with accept(listener) as server:
                assert server.recv(10) == b"hello"
                server.sendall(b"done")
            answered = select.select(waiting, [], [], DEADLINE)[0]
            assert answered
            for client in answered:
                assert client.recv(10) == b"done"
                waiting.remove(client)
                client.close()  # which lets the next one in
    assert re.search("Traceback|failed", proxy.text()) is None
    assert proxy.stop() == 0


@pytest.mark.parametrize("odd", [0, 1])
def test_without_descriptors_connections_wait_and_none_is_lost(world: Proxied, odd: int) -> None:
    proxy = world.proxy()
    limit = proxy.fds() + 2 * 10 + odd
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (limit, limit))
    carry_all(world, proxy, 30)


def test_the_last_descriptors_are_kept_for_other_things(world: Proxied) -> None:
    limit = RESERVED_FILES + 2 * 10
    world.enroll()
    proxy = world.start(prefix=("prlimit", f"--nofile={limit}:{limit}")).ready()
    idle = proxy.fds()
    carry_all(world, proxy, 30)
    assert f"out of file descriptors (limit {limit}, 10 connections)" in proxy.text()
    assert idle < RESERVED_FILES
