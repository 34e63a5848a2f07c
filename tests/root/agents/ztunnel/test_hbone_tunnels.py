"""Many tunnels on few connections: slow ones, half-closed ones, and how they end with the proxy."""

from __future__ import annotations

import contextlib
import re
import resource
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.asked import metric
from tests.root.agents.ztunnel.loads import KIB, MIB, Pairs
from tests.root.agents.ztunnel.meshed import B4, Meshed
from tests.root.agents.ztunnel.peers import read
from tests.root.agents.ztunnel.proxied import DEADLINE, ProxyProcess, ends_in_reset, is_reset

pytestmark = [pytest.mark.root, pytest.mark.bpf]

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def world(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Meshed]:
    """Two pods in a mesh; no proxy runs yet."""
    made = Meshed(capture, topology, tmp_path)
    try:
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def tunnels(world: Meshed, count: int) -> Iterator[list[Pair]]:
    """So many connections from a to b, all open at once."""
    with contextlib.ExitStack() as stack:
        pairs = stack.enter_context(Pairs(world))

        def one(_: int) -> Pair:
            return pairs.make()

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(one, range(count)))
        for pair in made:
            for sock in pair:
                stack.callback(sock.close)
        yield made


def wait_for(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def fill(senders: list[socket.socket]) -> int:
    """Sends on all of them until none takes any more for a while; how much that was."""
    sent, block = 0, bytes(256 * KIB)
    with selectors.DefaultSelector() as selector:
        for sock in senders:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_WRITE)
        end = time.monotonic() + DEADLINE
        while ready := selector.select(0.3):
            assert time.monotonic() < end, f"{sent} bytes and no end: nobody stops the senders"
            for key, _ in ready:
                with contextlib.suppress(BlockingIOError):
                    sent += key.fileobj.send(block)  # type: ignore[union-attr]
    for sock in senders:
        sock.settimeout(DEADLINE)
    return sent


def exchange(pair: Pair, size: int) -> None:
    """So many bytes there and back."""
    client, server = pair
    data = bytes(range(256)) * (size // 256)
    for one, other in ((client, server), (server, client)):
        with ThreadPoolExecutor(1) as pool:
            got = pool.submit(read, other, size)
            one.sendall(data)
            assert got.result() == data


@pytest.mark.parametrize("towards", ["server", "client"])
def test_receivers_that_stand_still_stop_nobody_else(world: Meshed, towards: str) -> None:
    world.start("--stats=127.0.0.1:0")
    with tunnels(world, 50) as made:
        assert metric(world.proxies["n1"], "nodenet_pool_connections") == 1
        memory = {node: proxy.rss_kib() for node, proxy in world.proxies.items()}
        senders = [pair[0 if towards == "server" else 1] for pair in made[:10]]
        sent = fill(senders)
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda pair: exchange(pair, MIB), made[10:]))
        assert time.monotonic() - began < DEADLINE
        # a window each where the receiver is, and what a growing buffer is copied for
        grown = {n: p.rss_kib() - memory[n] for n, p in world.proxies.items()}
        receiving = "n2" if towards == "server" else "n1"
        assert grown.pop(receiving) < 10 * 4 * 2 * KIB, grown
        assert max(grown.values()) < 16 * KIB, grown
        received = 0
        for sender, (client, server) in zip(senders, made, strict=False):
            sender.shutdown(socket.SHUT_WR)
            receiver = server if towards == "server" else client
            while data := receiver.recv(MIB):
                received += len(data)
        assert received == sent


@pytest.mark.parametrize("towards", ["server", "client"])
def test_all_receivers_but_one_may_stand_still(world: Meshed, towards: str) -> None:
    """As many full windows as there are tunnels would be more than a connection may hold."""
    world.start("--stats=127.0.0.1:0")
    with tunnels(world, 100) as made:
        assert metric(world.proxies["n1"], "nodenet_pool_connections") == 1
        memory = {node: proxy.rss_kib() for node, proxy in world.proxies.items()}
        senders = [pair[0 if towards == "server" else 1] for pair in made[1:]]
        sent = fill(senders)
        exchange(made[0], 16 * MIB)
        receiving = "n2" if towards == "server" else "n1"
        assert world.proxies[receiving].rss_kib() - memory[receiving] < 2 * 128 * KIB
        received = 0
        for sender, (client, server) in zip(senders, made[1:], strict=True):
            sender.shutdown(socket.SHUT_WR)
            receiver = server if towards == "server" else client
            while data := receiver.recv(MIB):
                received += len(data)
        assert received == sent
        exchange(made[0], 16 * MIB)


def test_several_hundred_tunnels(world: Meshed) -> None:
    world.start("--stats=127.0.0.1:0")
    with tunnels(world, 250) as made:
        for node, name in (("n1", "pool"), ("n2", "peer")):
            proxy = world.proxies[node]
            assert metric(proxy, f"nodenet_{name}_connections") == 3
            assert metric(proxy, f"nodenet_{name}_streams") == 250
        for _ in range(3):
            for client, _ in made:
                client.sendall(b"x" * 100)
            for _, server in made:
                assert read(server, 100) == b"x" * 100
    for node, name in (("n1", "pool"), ("n2", "peer")):
        proxy = world.proxies[node]
        wait_for(partial(_no_streams, proxy, name))
        assert metric(proxy, f"nodenet_{name}_connections") == 3


def _no_streams(proxy: ProxyProcess, name: str) -> bool:
    return metric(proxy, f"nodenet_{name}_streams") == 0


def test_all_tunnels_half_closed(world: Meshed) -> None:
    world.start()
    with tunnels(world, 60) as made:
        for number, pair in enumerate(made):
            one, other = pair if number % 2 else reversed(pair)
            one.shutdown(socket.SHUT_WR)
            assert other.recv(1) == b""
        for number, pair in enumerate(made):
            one, other = pair if number % 2 else reversed(pair)
            other.sendall(b"still here")
            assert read(one, 10) == b"still here"
            other.shutdown(socket.SHUT_WR)
            assert one.recv(1) == b""
    for proxy in world.proxies.values():
        proxy.wait_for_lines("connection complete", 60)
        assert "error=" not in proxy.text()


@contextlib.contextmanager
def descriptors(proxy: ProxyProcess, more: int) -> Iterator[None]:
    """The proxy may have so many more than it has."""
    soft, hard = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (proxy.fds() + more, hard))
    try:
        yield
    finally:
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (soft, hard))


def ask_all(world: Meshed, count: int, *, some_refused: bool = False) -> int:
    """So many connections at once, of which each wants an answer; how many got one.

    With ``some_refused`` none gets one before the first is refused.
    """
    with world.listen(world.b) as listener, contextlib.ExitStack() as stack:
        port = listener.getsockname()[1]
        waiting = [stack.enter_context(world.connect(world.a, B4, port)) for _ in range(count)]
        for client in waiting:
            with contextlib.suppress(OSError):
                client.sendall(b"hello")
        if some_refused:
            assert select.select(waiting, [], [], DEADLINE)[0]
        answered = 0
        while waiting:
            ready = select.select([listener, *waiting], [], [], DEADLINE)[0]
            assert ready
            if listener in ready:
                server, _ = listener.accept()
                with server:
                    assert server.recv(5) == b"hello"
                    server.sendall(b"done")
            for client in [each for each in ready if each is not listener]:
                with contextlib.suppress(ConnectionResetError):
                    answered += client.recv(4) == b"done"
                waiting.remove(client)
                client.close()
    return answered


def test_without_descriptors_outbound_connections_wait(world: Meshed) -> None:
    world.start()
    with world.pair() as pair:
        exchange(pair, KIB)
        with descriptors(world.proxies["n1"], 10):
            assert ask_all(world, 40) == 40
            exchange(pair, KIB)
    proxy = world.proxies["n1"]
    assert "out of file descriptors" in proxy.text()
    assert "error=" not in proxy.text()


def test_without_descriptors_inbound_tunnels_are_refused(world: Meshed) -> None:
    """Which the peer may try elsewhere, while a tunnel that waits is one that is lost."""
    world.start()
    with world.pair() as pair:
        exchange(pair, KIB)
        with descriptors(world.proxies["n2"], 10):
            assert 8 <= ask_all(world, 40, some_refused=True) < 40
            exchange(pair, KIB)
        assert ask_all(world, 20) == 20
    assert 'error="connection failed: Too many open files"' in world.access("n2", "error=")
    assert 'error="http status: 503 Service Unavailable"' in world.access("n1", "error=")


# -- the end of a proxy or a pod -------------------------------------------------------------------


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_proxy_that_ends_lets_tunnels_finish(world: Meshed, node: str) -> None:
    world.start("--drain=30")
    with tunnels(world, 5) as made:
        proxy = world.proxies[node]
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_for(r"draining: \d+ connections")
        for pair in made:
            exchange(pair, 64 * KIB)
        if node == "n2":
            # nobody takes the pod's place: the capture keeps the port
            assert is_reset(world.a, B4, 80)
            for pair in made:
                exchange(pair, 64 * KIB)
        assert proxy.process.poll() is None
        for client, server in made:
            client.shutdown(socket.SHUT_WR)
            assert server.recv(1) == b""
            server.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
        assert proxy.process.wait(DEADLINE) == 0
    assert "drained: 0 connections cut" in proxy.text()
    assert len(re.findall("info\taccess\tconnection complete", proxy.text())) == 5


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_tunnels_that_do_not_finish_are_reset(world: Meshed, node: str) -> None:
    world.start("--drain=0.3")
    with tunnels(world, 5) as made:
        proxy = world.proxies[node]
        proxy.process.send_signal(signal.SIGTERM)
        for pair in made:
            assert all(map(ends_in_reset, pair))
        assert proxy.process.wait(DEADLINE) == 0
    assert re.search(r"drained: [56] connections cut", proxy.text())
    assert proxy.text().count('error="connection closed due to connection drain"') == 5


def test_a_pods_namespace_vanishes(world: Meshed) -> None:
    """Its path goes, with live tunnels: they end, and the peer's proxy serves on."""
    world.start("--stats=127.0.0.1:0")
    with tunnels(world, 10) as made:
        subprocess.run(["ip", "netns", "delete", world.b.name], check=True)
        world.proxies["n2"].wait_for("namespace of pod test/b is gone")
        for client, server in made:
            assert ends_in_reset(client)
            assert ends_in_reset(server)
    proxy = world.proxies["n2"]
    wait_for(lambda: metric(proxy, "nodenet_peer_connections") == 0)
    assert metric(proxy, "workload_manager_active_proxy_count") == 0
    assert proxy.text().count("connection closed due to connection drain") == 10
    wait_for(lambda: metric(world.proxies["n1"], "nodenet_pool_streams") == 0)
