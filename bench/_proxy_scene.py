"""The whole way with the real proxy: client, capture, passthrough ztunnel, server.

Outbound the client is in the pod and the server outside, inbound the reverse; without capture they
talk directly. Throughput is taken with several clients and the proxy on a CPU of its own, so that
the proxy is what limits. Latency is taken with one client and everything on one CPU: waking a CPU
that went idle costs a virtual machine 10 to 60 us, by chance, four times in a round trip.

connect() ends at the proxy's listener; "first byte" is from before connect until a byte has come
back from the server, so it holds the proxy's own connect.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench._load import Load, Mode, Sample, Side
from bench._process import Process
from bench._samples import Samples
from bench._world import Standing, Variant, World
from nodenet.errors import NodenetError
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount

OUTBOUND: Final = "outbound through ztunnel"
INBOUND: Final = "inbound through ztunnel"
CONNECTIONS: Final = "connections"
PROXY_CPU: Final = "proxy CPU a connection"
CONNECT_P50: Final = "connect p50"
CONNECT_P99: Final = "connect p99"
FIRST_BYTE_P50: Final = "first byte p50"
FIRST_BYTE_P99: Final = "first byte p99"
ROUND_TRIP: Final = "64 B round trip p50"

_CLIENTS: Final = 8
_APP_PORT: Final = 8080
_STOP_SECONDS: Final = 10.0


class ProxyFailed(NodenetError):
    """The proxy did not start."""


@contextlib.contextmanager
def running_proxy(standing: Standing) -> Iterator[Process]:
    """The real proxy serves the instance's pods for the length of the block."""
    assert standing.instance is not None
    cgroup = Cgroup.create(cgroup2_mount() / standing.instance.name / "ztunnel")
    argv = [sys.executable, "-m", "nodenet.agents.ztunnel", "run"]
    argv += ["--id", str(standing.instance.id), "--drain", "0", "--log-level", "warning"]
    argv += ["--cgroup", str(cgroup.path)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = []
            for line in process.stderr:
                said.append(line.strip())
                if line.startswith("READY"):
                    break
            else:
                raise ProxyFailed(f"ztunnel did not start: {' | '.join(said) or 'no output'}")
            yield Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
    yield None


def measure(
    load: Load,
    world: World,
    variant: Variant,
    samples: Samples,
    *,
    milliseconds: int,
    cpu: int,
    proxy_cpu: int,
) -> None:
    """One round of one variant in both directions."""
    with variant.standing(world) as standing:
        proxied = running_proxy(standing) if standing.captured else _no_proxy()
        with proxied as proxy:
            for scene, client, server, ip in (
                (OUTBOUND, world.pod, world.outside, world.outside_ip),
                (INBOUND, world.outside, world.pod, world.pod_ip),
            ):
                run = _Run(load, client.path, server.path, f"{ip}:{_APP_PORT}", milliseconds, cpu)
                if proxy:
                    proxy.move(proxy_cpu)
                _measure_throughput(run, samples, scene, variant.name, proxy)
                if proxy:
                    proxy.move(cpu)
                _measure_latency(run, samples, scene, variant.name)


@dataclass(frozen=True, slots=True)
class _Run:
    load: Load
    client: Path
    server: Path
    address: str
    milliseconds: int
    cpu: int

    def __call__(self, mode: Mode, *, clients: int = 1) -> Sample:
        return self.load.run(
            mode,
            client=Side(netns=self.client, cpu=self.cpu),
            dial=self.address,
            server=Side(netns=self.server, cpu=self.cpu),
            listen=self.address,
            milliseconds=self.milliseconds,
            clients=clients,
            exchange=mode == "conn",
        )


def _measure_throughput(
    run: _Run, samples: Samples, scene: str, variant: str, proxy: Process | None
) -> None:
    before = proxy.cpu_ns() if proxy else 0
    busy = run("conn", clients=_CLIENTS)
    after = proxy.cpu_ns() if proxy else 0
    samples.record(scene, CONNECTIONS, "1/s", variant, busy.per_second)
    if proxy:
        samples.record(scene, PROXY_CPU, "us", variant, (after - before) / busy.total / 1e3)


def _measure_latency(run: _Run, samples: Samples, scene: str, variant: str) -> None:
    one = run("conn")
    samples.record(scene, CONNECT_P50, "us", variant, one.p50_ns / 1e3)
    samples.record(scene, CONNECT_P99, "us", variant, one.p99_ns / 1e3)
    samples.record(scene, FIRST_BYTE_P50, "us", variant, one.reply_p50_ns / 1e3)
    samples.record(scene, FIRST_BYTE_P99, "us", variant, one.reply_p99_ns / 1e3)
    trip = run("rtt")
    samples.record(scene, ROUND_TRIP, "us", variant, trip.p50_ns / 1e3)
