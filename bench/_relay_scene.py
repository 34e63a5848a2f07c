"""One pod to another: through ztunnel, through HAProxy, directly. What is measured, and how.

Each of the two CPUs stands for a node: on one the client and its proxy, on the other the server
and its own. That is how the pair runs in a mesh, no process waits for one that it shares nothing
with, and it is the same for all three. With a single connection everything is on one CPU: waking a
CPU that went idle costs a virtual machine 10 to 60 us, by chance, several times in a round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench._load import Load, Mode, Sample, Side
from bench._relay_proxies import HAPROXY_PORT, ProxyPair
from bench._relay_world import Pods, RelayWorld
from bench._samples import Samples

DIRECT: Final = "direct"
HAPROXY: Final = "haproxy"
ZTUNNEL: Final = "ztunnel"
VARIANTS: Final = (DIRECT, HAPROXY, ZTUNNEL)

THROUGHPUT: Final = "throughput"
P50: Final = "p50"
P99: Final = "p99"
RATE: Final = "a second"
FIRST_BYTE_P50: Final = "first byte p50"
FIRST_BYTE_P99: Final = "first byte p99"
OUTBOUND_CPU: Final = "outbound proxy CPU"
INBOUND_CPU: Final = "inbound proxy CPU"
CPU: Final = "CPU of both proxies"

CONNECTIONS: Final = "new connections"
_WRITE_BYTES: Final = 128 << 10
#: So many are being opened at a time: with fewer the two CPUs wait for each other.
_IN_FLIGHT: Final = 64


@dataclass(frozen=True, slots=True)
class Scene:
    """One load, by the name it has in the tables."""

    name: str
    mode: Mode
    connections: int
    size: int

    @property
    def on_one_cpu(self) -> bool:
        """Whether one process at a time has something to do."""
        return self.mode == "rtt"


def _bulk(direction: str, mode: Mode, streams: int) -> Scene:
    plural = "stream" if streams == 1 else "streams"
    return Scene(f"{direction}, {streams} {plural}", mode, streams, _WRITE_BYTES)


def _trips(size: str, bytes_: int, connections: int) -> Scene:
    plural = "connection" if connections == 1 else "connections"
    mode: Mode = "rtt" if connections == 1 else "trips"
    return Scene(f"{size} round trip, {connections} {plural}", mode, connections, bytes_)


BULK: Final = (
    _bulk("to the server", "up", 1),
    _bulk("to the client", "down", 1),
    _bulk("to the server", "up", 8),
    _bulk("to the client", "down", 8),
)
TRIPS: Final = tuple(
    _trips(name, size, connections)
    for connections in (1, 100)
    for name, size in (("64 B", 64), ("1 KiB", 1024))
)
NEW: Final = Scene(CONNECTIONS, "open", _IN_FLIGHT, 64)


@dataclass(frozen=True, slots=True)
class Way:
    """From where to where, and through whom."""

    variant: str
    pods: Pods
    dial: str
    proxies: ProxyPair | None

    def sides(self, client_cpu: int, server_cpu: int) -> tuple[Side, Side]:
        """The client's and the server's place."""
        return (
            Side(netns=self.pods.client.path, cpu=client_cpu),
            Side(netns=self.pods.server.path, cpu=server_cpu),
        )


def ways(world: RelayWorld, pairs: Mapping[str, ProxyPair]) -> tuple[Way, ...]:
    """Directly, and through each pair that runs."""
    plain, captured = world.plain, world.captured
    through = {
        HAPROXY: (plain, f"{plain.client_ip}:{HAPROXY_PORT}"),
        ZTUNNEL: (captured, captured.target),
    }
    return (
        Way(DIRECT, plain, plain.target, None),
        *(Way(name, *through[name], pair) for name, pair in pairs.items()),
    )


def measure(
    load: Load,
    scene: Scene,
    way: Way,
    samples: Samples,
    *,
    milliseconds: int,
    cpus: tuple[int, int],
) -> None:
    """One round of one scene on one way."""
    first, second = cpus
    if scene.on_one_cpu:
        second = first
    client, server = way.sides(first, second)
    proxies = way.proxies
    if proxies is not None:
        proxies.move(first, second)
    before = proxies.cpu_ns() if proxies is not None else (0, 0)
    sample = load.run(
        scene.mode,
        client=client,
        dial=way.dial,
        server=server,
        listen=way.pods.target,
        milliseconds=milliseconds,
        size=scene.size,
        connections=scene.connections,
    )
    after = proxies.cpu_ns() if proxies is not None else (0, 0)
    used = None if proxies is None else (after[0] - before[0], after[1] - before[1])
    record(samples, scene, way.variant, sample, used)


def record(
    samples: Samples, scene: Scene, variant: str, sample: Sample, used: tuple[int, int] | None
) -> None:
    """The measures that follow from a run; ``used`` is CPU in ns of the proxies, None: none."""
    name = scene.name
    if scene.mode in ("up", "down"):
        samples.record(name, THROUGHPUT, "Gbit/s", variant, sample.gb_per_second * 8)
        unit, each = "s/GB", float(sample.bytes)
    else:
        samples.record(name, RATE, "1/s", variant, sample.per_second)
        if scene.mode == "open":
            samples.record(name, FIRST_BYTE_P50, "us", variant, sample.reply_p50_ns / 1e3)
            samples.record(name, FIRST_BYTE_P99, "us", variant, sample.reply_p99_ns / 1e3)
        else:
            samples.record(name, P50, "us", variant, sample.p50_ns / 1e3)
            samples.record(name, P99, "us", variant, sample.p99_ns / 1e3)
        unit, each = "us", sample.total * 1e3
    if used is not None:
        for measure_name, spent in ((OUTBOUND_CPU, used[0]), (INBOUND_CPU, used[1])):
            samples.record(name, measure_name, unit, variant, spent / each)
        samples.record(name, CPU, unit, variant, sum(used) / each)
