"""What `bench.konnectivity` measures of a pair of server and agent."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from bench import _tunnel_driver as driver
from bench import _tunnel_grpc as grpc_driver
from bench._samples import Samples
from bench._tunnel_rate import PATIENCE_SECONDS, Rate, TunnelFailed
from tests.interop.certificates import Certificates
from tests.interop.peers import AgentProcess, Maker, ServerProcess, World, wait_for

GO: Final = "go"
OURS: Final = "ours"
MIXED: Final = "go server, our agent"
MAKERS: Final[dict[str, tuple[Maker, Maker]]] = {
    GO: ("go", "go"),
    OURS: ("ours", "ours"),
    MIXED: ("go", "ours"),
}

BULK: Final = "bytes through HTTP CONNECT"
GRPC_BULK: Final = "bytes through gRPC"
TRIPS: Final = "64 bytes there and back"
DIALS: Final = "dials"
IDLE: Final = "idle tunnels"
STALLED: Final = "dials beside a stalled tunnel"

DOWN: Final = "download"
UP: Final = "upload"
TRIP_P50: Final = "round trip p50"
CONNECT_50: Final = "HTTP CONNECT, 50 at a time"
GRPC_50: Final = "gRPC, one connection, 50 at a time"
#: Without an answer for so long a dial beside a stalled tunnel counts as never answered.
STALLED_PATIENCE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A server and its agent, and the same two in the other mode."""

    connect: tuple[ServerProcess, AgentProcess]
    """In mode http-connect."""
    grpc: tuple[ServerProcess, AgentProcess]

    @property
    def path(self) -> Path:
        """The Unix socket for HTTP CONNECT."""
        return _unix(self.connect)

    @property
    def grpc_path(self) -> Path:
        """That for gRPC."""
        return _unix(self.grpc)


def _unix(processes: tuple[ServerProcess, AgentProcess]) -> Path:
    path = processes[0].target.path
    assert path is not None
    return path


class Scenes:
    """The pairs that are measured, and the remote. A context manager."""

    def __init__(self, folder: Path, certificates: Certificates, variants: tuple[str, ...]) -> None:
        self._stack = contextlib.ExitStack()
        self._world = World(folder, certificates)
        self.variants = variants
        self.pairs: dict[str, Pair] = {}
        self.address = ""

    def __enter__(self) -> Self:
        try:
            self._stack.enter_context(self._world)
            self.address = f"127.0.0.1:{self._stack.enter_context(_remote())}"
            for variant in self.variants:
                self.pairs[variant] = Pair(
                    self._pair(variant, "http-connect"), self._pair(variant, "grpc")
                )
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def _pair(self, variant: str, mode: str) -> tuple[ServerProcess, AgentProcess]:
        makers = MAKERS[variant]
        world = self._world
        # upstream logs every dial at its default level, which nobody measures for
        quiet = {"go": ("--v=0",), "ours": ()}
        server = world.server(
            makers[0],
            *quiet[makers[0]],
            mode="grpc" if mode == "grpc" else "http-connect",
            transport="uds",
        )
        agent = world.agent(makers[1], server, *quiet[makers[1]])
        wait_for(lambda: server.ready, f"{agent.name} is connected to {server.name}")
        return server, agent

    # -- scenes -----------------------------------------------------------------------------------

    def bulk(self, variant: str, samples: Samples, *, size: int) -> None:
        """Throughput and CPU by HTTP CONNECT, one tunnel and ten."""
        pair = self.pairs[variant]
        for name, move in ((DOWN, driver.download), (UP, driver.upload)):
            for connections in (1, 10):
                what = f"{name}, {connections} tunnel{'s' if connections > 1 else ''}"

                def go(
                    move: Callable[[Path, str, int, int], float] = move, count: int = connections
                ) -> float:
                    return move(pair.path, self.address, size, count)

                self._moved(variant, samples, BULK, what, pair.connect, size, go)

    def grpc_bulk(self, variant: str, samples: Samples, *, size: int) -> None:
        """The same by gRPC, one tunnel."""
        pair = self.pairs[variant]
        path = pair.grpc_path
        for name, move in ((DOWN, grpc_driver.download), (UP, grpc_driver.upload)):

            def go(move: Callable[[Path, str, int], float] = move) -> float:
                return move(path, self.address, size)

            self._moved(variant, samples, GRPC_BULK, name, pair.grpc, size, go)

    def _moved(
        self,
        variant: str,
        samples: Samples,
        scene: str,
        what: str,
        processes: tuple[ServerProcess, AgentProcess],
        size: int,
        move: Callable[[], float],
    ) -> None:
        meter = _Meter(processes)
        seconds = move()
        gigabytes = size / 1e9
        samples.record(scene, what, "Gbit/s", variant, gigabytes * 8 / seconds)
        for who, used in meter.used():
            samples.record(scene, f"{what}: {who}", "CPU-s/GB", variant, used / gigabytes)

    def trips(self, variant: str, samples: Samples, *, seconds: float) -> None:
        """Latency."""
        found = driver.trips(self.pairs[variant].path, self.address, seconds)
        samples.record(TRIPS, TRIP_P50, "us", variant, found.p50_us)
        samples.record(TRIPS, "round trip p99", "us", variant, found.p99_us)

    def dials(self, variant: str, samples: Samples, *, seconds: float) -> None:
        """Dials a second, in every way."""
        pair = self.pairs[variant]
        address = self.address
        for at_once, name in ((1, "HTTP CONNECT, 1 at a time"), (50, CONNECT_50)):
            meter = _Meter(pair.connect)
            found = driver.dials(pair.path, address, seconds, at_once, PATIENCE_SECONDS)
            _record_rate(samples, name, variant, found, meter)
        for at_once, shared, name in (
            (1, True, "gRPC, one connection, 1 at a time"),
            (50, True, GRPC_50),
            (1, False, "gRPC, a connection each, 1 at a time"),
            (20, False, "gRPC, a connection each, 20 at a time"),
        ):
            meter = _Meter(pair.grpc)
            found = grpc_driver.dials(pair.grpc_path, address, seconds, at_once, shared=shared)
            _record_rate(samples, name, variant, found, meter)

    def idle(self, variant: str, samples: Samples, *, count: int) -> None:
        """Memory of tunnels that carry nothing, and whether each is alive afterwards.

        In processes of its own: what others have used and freed would be used again.
        """
        server, agent = pair = self._pair(variant, "http-connect")
        path = server.target.path
        assert path is not None
        driver.connect(path, self.address).close()
        before = [_memory(process.pid) for process in pair]
        tunnels: list[socket.socket] = []
        try:
            for _ in range(count):
                tunnels.append(driver.connect(path, self.address))
            after = [_memory(process.pid) for process in pair]
            for sock in tunnels:
                sock.sendall(b"ex")
            for number, sock in enumerate(tunnels):
                if sock.recv(1) != b"x":
                    raise TunnelFailed(f"idle tunnel {number} of {count} is dead")
        finally:
            for sock in tunnels:
                sock.close()
            agent.kill()
            server.kill()
        for name, start, end in zip(("server", "agent"), before, after, strict=True):
            samples.record(IDLE, f"memory of one: {name}", "KiB", variant, (end - start) / count)
        samples.record(IDLE, "held and alive", "", variant, count)

    def stalled(self, variant: str, samples: Samples, *, seconds: float) -> None:
        """New dials while somebody does not read."""
        path = self.pairs[variant].path
        for name, stall in (
            ("a client that does not read", _stalled_client),
            ("a remote that does not read", _stalled_remote),
        ):
            with stall(path, self.address):
                found = driver.dials(path, self.address, seconds, 10, STALLED_PATIENCE_SECONDS)
            samples.record(STALLED, name, "/s", variant, found.per_second)
            longest = found.p99_us / 1e3 or STALLED_PATIENCE_SECONDS * 1e3
            samples.record(STALLED, f"{name}: p99", "ms", variant, longest)
            # the dials that were never answered are answered now
            driver.connect(path, self.address).close()


class _Meter:
    """What a server, its agent and the driver take of the processors from now on."""

    def __init__(self, processes: tuple[ServerProcess, AgentProcess]) -> None:
        server, agent = processes
        self._pids = {"server": server.pid, "agent": agent.pid, "driver": os.getpid()}
        self._before = [_cpu(pid) for pid in self._pids.values()]

    def used(self) -> Iterator[tuple[str, float]]:
        """Of each, in seconds."""
        for (who, pid), before in zip(self._pids.items(), self._before, strict=True):
            yield who, _cpu(pid) - before


def _record_rate(samples: Samples, name: str, variant: str, found: Rate, meter: _Meter) -> None:
    samples.record(DIALS, name, "/s", variant, found.per_second)
    samples.record(DIALS, f"{name}: p50", "us", variant, found.p50_us)
    samples.record(DIALS, f"{name}: p99", "us", variant, found.p99_us)
    for who, used in meter.used():
        if found.count:
            samples.record(DIALS, f"{name}: {who}", "CPU-us", variant, used / found.count * 1e6)


@contextlib.contextmanager
def _stalled_client(path: Path, address: str) -> Iterator[None]:
    with driver.connect(path, address, b"d" + (1 << 40).to_bytes(8, "big")):
        time.sleep(1.0)  # all buffers on the way are full then
        yield


@contextlib.contextmanager
def _stalled_remote(path: Path, address: str) -> Iterator[None]:
    with driver.connect(path, address, b"x") as sock:
        sock.settimeout(0.5)
        block = bytes(256 * 1024)
        end = time.monotonic() + 3.0
        with contextlib.suppress(TimeoutError, ConnectionError):
            while time.monotonic() < end:
                sock.sendall(block)
        try:
            yield
        finally:
            # upstream's agent is stuck for as long as the remote is
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as release:
                release.sendall(b"r")
                release.recv(1)


@contextlib.contextmanager
def _remote() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench._tunnel_remote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(10)


def _cpu(pid: int) -> float:
    """Seconds of all threads, to the nanosecond; /proc counts in hundredths."""
    # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel, as clock_getcpuclockid(3) makes it
    return time.clock_gettime(~pid << 3 | 2)


def _memory(pid: int) -> float:
    """KiB."""
    return float(psutil.Process(pid).memory_info().rss) / 1024
