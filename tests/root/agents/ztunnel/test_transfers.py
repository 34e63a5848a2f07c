"""Many connections at once: nothing lost, nothing left."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.root.agents.ztunnel.proxied import DEADLINE, OUT4, POD4, Proxied, accept
from tests.root.dialling import wait_for

pytestmark = [pytest.mark.root]

TRANSFERS = 200
PARALLEL = 25


def digest(sock: socket.socket) -> str:
    """Of everything until the end of the stream."""
    found = hashlib.sha256()
    while data := sock.recv(1 << 16):
        found.update(data)
    return found.hexdigest()


class Plan:
    """What one connection carries, both ways, and who ends first."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        sizes = [0, 1, 63, 1460, 65536, 262144, 262145, rng.randrange(1 << 22)]
        self.forth = rng.randbytes(rng.choice(sizes))
        self.back = rng.randbytes(rng.choice(sizes))
        self.turns = rng.choice(["client", "server", "together"])
        self.chunk = rng.choice([1000, 50_000, 1 << 20])

    def run(self, client: socket.socket, server: socket.socket) -> bool:
        """Carries it out; whether both sides got what the other sent."""
        ended = {"client": threading.Event(), "server": threading.Event()}
        found: dict[str, str] = {}

        def send(me: str, sock: socket.socket, data: bytes) -> None:
            for start in range(0, len(data), self.chunk):
                sock.sendall(data[start : start + self.chunk])
            other = "server" if me == "client" else "client"
            if self.turns == other:
                assert ended[other].wait(DEADLINE)
            sock.shutdown(socket.SHUT_WR)
            ended[me].set()

        def receive(me: str, sock: socket.socket) -> None:
            found[me] = digest(sock)

        threads = [
            threading.Thread(target=send, args=("client", client, self.forth)),
            threading.Thread(target=send, args=("server", server, self.back)),
            threading.Thread(target=receive, args=("client", client)),
            threading.Thread(target=receive, args=("server", server)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found == {
            "client": hashlib.sha256(self.back).hexdigest(),
            "server": hashlib.sha256(self.forth).hexdigest(),
        }


@pytest.mark.parametrize(
    ("direction", "backend"), [("outbound", "ebpf"), ("inbound", "ebpf"), ("inbound", "iptables")]
)
def test_random_transfers_in_parallel_arrive_whole(world: Proxied, direction: str) -> None:
    proxy = world.proxy()
    fds = proxy.fds()

    def one(seed: int) -> bool:
        with getattr(world, direction)() as (client, server):
            return Plan(seed).run(client, server)

    with ThreadPoolExecutor(PARALLEL) as pool:
        results = list(pool.map(one, range(TRANSFERS)))
    assert results == [True] * TRANSFERS
    assert proxy.stop() == 0
    assert "Traceback" not in proxy.text() and "Warning" not in proxy.text()
    assert fds < 40


def test_short_connections_leave_nothing(world: Proxied) -> None:
    proxy = world.proxy("--access-log")
    count = 2000
    with world.listen(world.out) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(count):
                with accept(listener) as server:
                    server.sendall(server.recv(64))

        server = threading.Thread(target=serve)
        server.start()

        def some(_: int) -> None:
            for _ in range(count // 8):
                with world.connect(world.pod, OUT4, port) as client:
                    client.sendall(b"x" * 64)
                    assert client.recv(64) == b"x" * 64

        before, memory = proxy.fds(), proxy.rss_kib()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(some, range(8)))
        server.join(DEADLINE)
    proxy.wait_for_lines("\taccess\t", count)
    wait_for(lambda: proxy.fds() <= before, "its descriptors are closed", DEADLINE)
    assert proxy.rss_kib() - memory < 8 * 1024
    assert proxy.stop() == 0
    assert "drained: 0 connections cut" in proxy.text()


def test_a_receiver_that_stops_reading_stops_its_sender(world: Proxied) -> None:
    proxy = world.proxy()
    with world.outbound() as (client, server):
        memory = proxy.rss_kib()
        client.settimeout(0.5)
        sent, block = 0, bytes(1 << 20)
        try:
            while sent < 1 << 30:
                sent += client.send(block)
        except TimeoutError:
            pass
        assert sent < 64 << 20, "the sender was never stopped"
        assert proxy.rss_kib() - memory < 8 * 1024
        client.shutdown(socket.SHUT_WR)
        received = 0
        while data := server.recv(1 << 20):
            received += len(data)
        assert received == sent


def test_idle_connections_stay(world: Proxied) -> None:
    proxy = world.proxy("--connect-timeout=0.2")
    with world.inbound(POD4) as (client, server):
        # a whole other connection, longer than every deadline of the proxy
        world.out.run("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "DROP")
        with world.connect(world.pod, OUT4, 7):
            proxy.wait_for("failed: Connection timed out")
        client.sendall(b"still there")
        assert server.recv(100) == b"still there"
