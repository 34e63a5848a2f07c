"""One pod to another through two ztunnels, next to two HAProxys, next to nothing.

    sudo ./dev bench relay [-j] [--quick] [--rounds N] [--ms N] [--plot FILE.png]
        [--only SECTION]...

Sections: ``bulk`` (Gbit/s), ``trips`` (round trips), ``connections`` (new ones), all of
`bench._relay_scene`, and ``idle`` (memory, `bench._relay_idle`). docs/benchmarks.md tells what the
figures mean.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Sequence

from bench import _relay_idle as idle
from bench import _relay_plot as plot
from bench import _relay_scene as scene
from bench._load import Load
from bench._machine import machine, two_cpus
from bench._relay_proxies import haproxy_pair, ztunnel_pair
from bench._relay_scene import BULK, HAPROXY, NEW, TRIPS, ZTUNNEL, Scene
from bench._relay_world import RelayWorld
from bench._report import Floor, Report
from bench._run import Options, Progress, in_turn, main
from bench._samples import Samples

SECTIONS = ("bulk", "trips", "connections", "idle")
SCENES: dict[str, Sequence[Scene]] = {"bulk": BULK, "trips": TRIPS, "connections": (NEW,)}
PAIRS = {HAPROXY: haproxy_pair, ZTUNNEL: ztunnel_pair}
NOTES = [
    "ratios are to haproxy; ztunnel has its access log on, haproxy has none",
    "a new connection is a stream of a pooled connection with ztunnel, a TLS session with haproxy, "
    "which resumes it (one handshake with certificates, then tickets)",
]
IDLE, IDLE_QUICK = 10_000, 2_000
#: Long enough for ztunnels to ask each other for a sign of life (every 10 s of silence).
_HOLD_SECONDS, _HOLD_SECONDS_QUICK = 12.0, 1.0
#: Descriptors of one process: both ends of the idle connections, and as many again.
_FILES = 4 * IDLE
#: Those of a proxy that are no connection's.
_OTHER_FILES = 512


def run(options: Options, progress: Progress) -> Report:
    """Measures the chosen sections."""
    if options.plot is not None:
        plot.need(options.plot)
    files = _raise_file_limit()
    facts = machine()
    samples = Samples(baseline=HAPROXY)
    rounds = options.choose_rounds(full=9, quick=2)
    report = Report(bench="relay", machine=facts, rounds=rounds, samples=samples, notes=[*NOTES])
    with Load() as load, RelayWorld.made() as world:
        measure_scenes(load, world, samples, options, rounds, progress)
        if "idle" in options.only:
            wanted = IDLE_QUICK if options.quick else IDLE
            count = min(wanted, (files - _OTHER_FILES) // 2)
            if count < wanted:
                report.notes.append(f"{count} idle connections: a process may have {files} files")
            measure_idle(load, world, samples, count, options, progress)
    report.floors += floors(samples, options.only)
    if options.plot is not None:
        plot.draw(report, options.plot)
    return report


def measure_scenes(
    load: Load,
    world: RelayWorld,
    samples: Samples,
    options: Options,
    rounds: int,
    progress: Progress,
) -> None:
    """Every scene of the chosen sections, all ways next to each other."""
    chosen = [(name, each) for name in SCENES if name in options.only for each in SCENES[name]]
    if not chosen:
        return
    cpus = two_cpus()
    milliseconds = options.choose_milliseconds(full=700, quick=200)
    with contextlib.ExitStack() as stack:
        progress("starting the proxies")
        pairs = {name: stack.enter_context(make(world)) for name, make in PAIRS.items()}
        every = scene.ways(world, pairs)
        for turn in range(rounds):
            for section in dict.fromkeys(name for name, _ in chosen):
                progress(f"{section}: round {turn + 1} of {rounds}")
                for name, each in chosen:
                    if name == section:
                        for way in in_turn(every, turn):
                            scene.measure(
                                load, each, way, samples, milliseconds=milliseconds, cpus=cpus
                            )


def measure_idle(
    load: Load,
    world: RelayWorld,
    samples: Samples,
    count: int,
    options: Options,
    progress: Progress,
) -> None:
    """The idle connections, with new proxies each time."""
    cpus = two_cpus()
    hold_seconds = _HOLD_SECONDS_QUICK if options.quick else _HOLD_SECONDS
    for turn in range(min(options.choose_rounds(full=2, quick=1), 2)):
        for name in in_turn(tuple(PAIRS), turn):
            progress(f"idle: {count} connections through {name}")
            with PAIRS[name](world) as pair:
                way = next(w for w in scene.ways(world, {name: pair}) if w.variant == name)
                idle.measure(
                    load, way, pair, samples, count=count, hold_seconds=hold_seconds, cpus=cpus
                )


def floors(samples: Samples, sections: frozenset[str]) -> list[Floor]:
    """What the project wants of the relay."""
    found: list[Floor] = []

    def ratio(name: str, measure: str, sense: str, wanted: float) -> None:
        found.append(
            Floor(
                name=f"{name}: {measure}, ztunnel/haproxy",
                sense=">=" if sense == ">=" else "<=",
                wanted=wanted,
                got=samples.ratio(name, measure, ZTUNNEL, HAPROXY),
            )
        )

    if "bulk" in sections:
        for each in BULK:
            ratio(each.name, scene.THROUGHPUT, ">=", 0.9)
        for each in BULK:
            ratio(each.name, scene.CPU, "<=", 1.3)
    if "trips" in sections:
        for each in TRIPS:
            if each.size == 64:
                ratio(each.name, scene.P50, "<=", 1.5)
        for each in TRIPS:
            ratio(each.name, scene.CPU, "<=", 1.5)
    if "connections" in sections:
        rate = samples.median(NEW.name, scene.RATE, ZTUNNEL)
        found.append(Floor(name=f"{NEW.name} a second", sense=">=", wanted=2500, got=rate))
    if "idle" in sections:
        for measure in (idle.OUTBOUND_MEMORY, idle.INBOUND_MEMORY):
            kib = samples.median(idle.SCENE, measure, ZTUNNEL)
            name = f"{idle.SCENE}: {measure}, KiB"
            found.append(Floor(name=name, sense="<=", wanted=40, got=kib))
    return found


def _raise_file_limit() -> int:
    """For the proxies and the load, which inherit it; how many it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (_FILES, hard):
        if soft >= wanted:
            break
        with contextlib.suppress(ValueError, OSError):  # no CAP_SYS_RESOURCE
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
            return wanted
    return soft


if __name__ == "__main__":
    sys.exit(main("relay", __doc__ or "", SECTIONS, run, plots=True))
