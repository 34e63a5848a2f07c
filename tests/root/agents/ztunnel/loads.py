"""Loads from pod to pod, and the accounts of them: both logs, both metrics, and the kernel's."""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final, Self

from bench._load import Load, Side
from nodenet.agents.ztunnel.telemetry import MAX_RECENT
from nodenet.conns.reader import ConnReader
from tests.root.agents.ztunnel.asked import metric
from tests.root.agents.ztunnel.meshed import B4, Meshed, deny
from tests.root.agents.ztunnel.peers import read
from tests.root.agents.ztunnel.proxied import DEADLINE, ProxyProcess

KIB: Final = 1024
MIB: Final = 1024 * KIB
#: Sizes at which something changes: nothing, a byte, segments, records, windows.
EDGES: Final = (0, 1, 63, 1460, 16 * KIB, 16 * KIB + 1, 256 * KIB, 256 * KIB + 1, 4 * MIB)
_POOL: Final = random.Random(1).randbytes(4 * MIB)
#: Connections after which a proxy remembers as many as it ever will.
WARM_CONNECTIONS: Final = MAX_RECENT + 1000
#: Seconds one transfer may take on a machine that does other things as well.
TRANSFER_SECONDS: Final = 120.0


class Transfer:
    """What one connection carries, both ways, and who ends first."""

    def __init__(self, seed: int, most: int) -> None:
        rng = self._rng = random.Random(seed)
        self.forth, self.back = _size(rng, most), _size(rng, most)
        self.turns = rng.choice(["client", "server", "together"])
        self.chunk = rng.choice([1000, 50_000, MIB]) if self.forth + self.back < MIB else MIB

    def pieces(self, size: int, seed: int) -> Iterator[memoryview]:
        """Bytes that differ from place to place, without making them."""
        rng, view = random.Random(seed), memoryview(_POOL)
        while size:
            start = rng.randrange(len(_POOL) - self.chunk)
            count = min(size, self.chunk)
            yield view[start : start + count]
            size -= count

    def run(self, client: socket.socket, server: socket.socket) -> bool:
        """Carries it out; whether both sides got what the other sent."""
        sides = {"client": (client, self.forth), "server": (server, self.back)}
        ended = {name: threading.Event() for name in sides}
        sent: dict[str, str] = {}
        got: dict[str, str] = {}
        seeds = {name: self._rng.random().hex() for name in sides}

        def send(me: str, sock: socket.socket, size: int) -> None:
            digest = hashlib.sha256()
            for piece in self.pieces(size, int(seeds[me].replace(".", "")[2:10], 16)):
                sock.sendall(piece)
                digest.update(piece)
            other = "server" if me == "client" else "client"
            if self.turns == other:
                assert ended[other].wait(TRANSFER_SECONDS)
            sock.shutdown(socket.SHUT_WR)
            ended[me].set()
            sent[me] = digest.hexdigest()

        def receive(me: str, sock: socket.socket) -> None:
            digest, buffer = hashlib.sha256(), bytearray(256 * KIB)
            while count := sock.recv_into(buffer):
                digest.update(memoryview(buffer)[:count])
            got[me] = digest.hexdigest()

        threads = []
        for name, (sock, size) in sides.items():
            sock.settimeout(TRANSFER_SECONDS)
            threads.append(threading.Thread(target=send, args=(name, sock, size)))
            threads.append(threading.Thread(target=receive, args=(name, sock)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(sent) == 2 and got == {"client": sent["server"], "server": sent["client"]}


def _size(rng: random.Random, most: int) -> int:
    if rng.random() < 0.25:
        return min(rng.choice(EDGES), most)
    return int(math.exp(rng.uniform(0, math.log(most))))


class Pairs:
    """Makes connections from a to b, and both ends of each. A context manager."""

    def __init__(self, world: Meshed) -> None:
        self._world = world
        self._listener = world.listen(world.b)
        self._arrived: dict[tuple[str, int], socket.socket] = {}
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._listener.settimeout(0.1)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over = True
        self._thread.join(DEADLINE)
        self._listener.close()
        for sock in self._arrived.values():
            sock.close()

    def make(self) -> tuple[socket.socket, socket.socket]:
        """A connection: (client, server). The client says a number first, which is taken off."""
        client = self._world.connect(self._world.a, B4, self._listener.getsockname()[1])
        port = client.getsockname()[1]
        client.sendall(port.to_bytes(2, "big"))
        with self._changed:
            assert self._changed.wait_for(lambda: ("", port) in self._arrived, DEADLINE)
            return client, self._arrived.pop(("", port))

    def _accept(self) -> None:
        while not self._over:
            try:
                server, _ = self._listener.accept()
            except TimeoutError:
                continue
            server.settimeout(DEADLINE)
            port = int.from_bytes(read(server, 2), "big")
            with self._changed:
                self._arrived["", port] = server
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Account:
    """Connections and their bytes, as one of those who count them has it."""

    connections: int
    forth: int
    """Bytes from the client to the server."""
    back: int

    def __add__(self, other: Account) -> Account:
        return Account(
            self.connections + other.connections,
            self.forth + other.forth,
            self.back + other.back,
        )


def run_transfers(
    world: Meshed, seeds: range, *, most: int, parallel: int = 16, edit_seconds: float = 0.5
) -> Account:
    """Runs transfers while a policy is edited; AssertionError when one is not whole."""
    stop = threading.Event()
    edits = [0]

    def edit() -> None:
        while not stop.wait(edit_seconds):
            edits[0] += 1
            world.mesh["policies"] = [deny(f"not-{edits[0]}", f"nobody-{edits[0]}")]
            world.write()

    def one(seed: int) -> Transfer:
        transfer = Transfer(seed, most)
        client, server = pairs.make()
        with client, server:
            assert transfer.run(client, server), f"transfer {seed} is not whole"
        return transfer

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        with Pairs(world) as pairs, ThreadPoolExecutor(parallel) as pool:
            done = list(pool.map(one, seeds))
    finally:
        stop.set()
        editor.join()
    return Account(len(done), sum(t.forth + 2 for t in done), sum(t.back for t in done))


def accounts(world: Meshed) -> dict[str, Account]:
    """What was carried from a to b, from everybody who counts it."""
    found: dict[str, Account] = {}
    for node, direction in (("n1", "outbound"), ("n2", "inbound")):
        lines = [
            (int(sent), int(got))
            for sent, got in re.findall(
                rf'\tinfo\taccess\tconnection complete\t.*direction="{direction}" '
                r'bytes_sent=(\d+) bytes_recv=(\d+) duration="\d+ms" conn',
                world.proxies[node].text(),
            )
        ]
        sent, got = sum(line[0] for line in lines), sum(line[1] for line in lines)
        out = direction == "outbound"
        found[f"log of {node}"] = Account(len(lines), sent if out else got, got if out else sent)
        labels = {"connection_security_policy": "mutual_tls"}
        labels["reporter"] = "source" if out else "destination"
        found[f"metrics of {node}"] = Account(
            *(
                int(metric(world.proxies[node], f"istio_tcp_{name}", **labels))
                for name in ("connections_closed", "received_bytes", "sent_bytes")
            )
        )
    totals = ConnReader(world.capture.instance).totals()
    for pod, direction in (("test/a", "out"), ("test/b", "in")):
        of_pod = [t for t in totals if t.pod == pod and t.dir == direction]
        sent, got = (sum(getattr(t, f"bytes_{n}") for t in of_pod) for n in ("sent", "received"))
        out = direction == "out"
        found[f"kernel of {pod}"] = Account(
            sum(t.closed for t in of_pod), sent if out else got, got if out else sent
        )
    return found


def wait_for_accounts(world: Meshed, wanted: Account) -> None:
    """Until all agree; AssertionError with what they say when they do not."""
    end = time.monotonic() + DEADLINE
    while set((said := accounts(world)).values()) != {wanted}:
        assert time.monotonic() < end, f"wanted {wanted}, not {said}"
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a proxy holds."""

    rss_kib: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, proxy: ProxyProcess) -> Self:
        """Of this moment."""
        return cls(proxy.rss_kib(), proxy.fds(), len(os.listdir(f"/proc/{proxy.pid}/task")))


def churn(world: Meshed, count: int, *, slice_ms: int = 5000) -> dict[str, object]:
    """Opens and closes so many connections, some bytes there and back on each.

    Fails when a connection does, or when they leave memory, descriptors or lines in a log. What
    they may leave is what is remembered of the last ones, so the first ones do not count.
    """
    footprints: list[dict[str, Footprint]] = []
    done, elapsed = 0, 0.0
    with Load() as load:

        def some(until: int, milliseconds: int) -> None:
            nonlocal done, elapsed
            while done < until:
                sample = load.run(
                    "open",
                    client=Side(netns=world.a.path, cpu=0),
                    server=Side(netns=world.b.path, cpu=1),
                    dial=f"{B4}:8080",
                    listen=f"{B4}:8080",
                    milliseconds=milliseconds,
                    connections=32,
                    size=64,
                )
                done += sample.total
                elapsed += sample.elapsed_ns / 1e9
                for proxy in world.proxies.values():
                    _wait_for(_Counted(proxy, done))
                footprints.append({n: Footprint.of(p) for n, p in world.proxies.items()})

        some(WARM_CONNECTIONS, 1000)
        warm, used = len(footprints) - 1, _cpu_seconds(world)
        before = done
        some(count, slice_ms)
        used = _cpu_seconds(world) - used
    for proxy in world.proxies.values():
        assert metric(proxy, "istio_tcp_connections_failed") == 0
        assert metric(proxy, "istio_tcp_connections_opened") == done
        # in its debug mode asyncio tells what took long, which on a busy machine is the machine
        complaints = re.findall(r"(?m)^.*\t(?:warn|error)\t(?!asyncio\tExecuting).*$", proxy.text())
        assert not complaints, complaints[:5]
    first, last = footprints[warm], footprints[-1]
    result = {
        "connections": done,
        "seconds": round(elapsed, 1),
        "per_second": round(done / elapsed),
        "proxy_cpu_us_each": round(used / (done - before) * 1e6, 1),
        "first": {n: asdict(f) for n, f in first.items()},
        "last": {n: asdict(f) for n, f in last.items()},
        "rss_kib": {n: [f[n].rss_kib for f in footprints] for n in world.proxies},
    }
    for node in world.proxies:
        assert last[node].rss_kib - first[node].rss_kib < 8 * KIB, result
        assert last[node].descriptors <= first[node].descriptors + 4, result
        assert last[node].threads <= first[node].threads + 1, result
    return result


def _cpu_seconds(world: Meshed) -> float:
    return sum(proxy.cpu_seconds() for proxy in world.proxies.values())


def _wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Whether a proxy has counted so many connections as closed."""

    proxy: ProxyProcess
    count: int

    def __call__(self) -> bool:
        return metric(self.proxy, "istio_tcp_connections_closed") >= self.count
