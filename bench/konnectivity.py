"""What a konnectivity server and agent carry: ours, against the real ones from Go.

    sudo ./dev bench konnectivity [-j] [--quick] [--rounds N] [--ms N] [--only SECTION]...

Sections: ``bulk``, ``grpc``, ``trips``, ``dials``, ``idle``, ``stalled``. The Go pair is built from
tests/interop/peer when Go is there, else ours is measured alone. docs/benchmarks.md tells what the
figures mean.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import _tunnel_scenes as scenes
from bench._machine import machine
from bench._report import Floor, Report, Sense
from bench._run import Options, Progress, in_turn, main
from bench._samples import Samples
from bench._tunnel_scenes import GO, MIXED, OURS, Scenes
from tests.interop import certificates
from tests.interop.go_peer import NoGoPeer, go_peer

SECTIONS = ("bulk", "grpc", "trips", "dials", "idle", "stalled", "mixed")
NOTES = [
    "everything runs on this machine: driver, server, agent and remote share its processors",
    "frontend over a Unix socket, agent over mTLS; upstream runs with --v=0",
]


def run(options: Options, progress: Progress) -> Report:
    """Measures the chosen sections."""
    notes = list(NOTES)
    chosen = options.only
    variants: tuple[str, ...] = (OURS,)
    try:
        progress("building the Go pair, unless it is there")
        go_peer()
        # the third pair tells which end a difference is from; only when asked for
        named = len(chosen) < len(SECTIONS) and "mixed" in chosen
        variants = (GO, OURS, MIXED) if named else (GO, OURS)
    except NoGoPeer as error:
        notes.append(f"no Go pair: {error}")
    # next to a stalled tunnel upstream does nothing, which nothing can be divided by
    samples = Samples(baseline=GO, baselines={scenes.STALLED: "none", scenes.IDLE: "none"})
    rounds = options.choose_rounds(full=7, quick=1)
    report = Report(
        bench="konnectivity", machine=machine(), rounds=rounds, samples=samples, notes=notes
    )
    _allow_files()
    with tempfile.TemporaryDirectory(prefix="nn-") as name:
        folder = Path(name)
        with Scenes(folder, certificates.make(folder), variants) as measured:
            for turn in range(rounds):
                for variant in in_turn(variants, turn):
                    progress(f"round {turn + 1} of {rounds}: {variant}")
                    _measure(measured, variant, samples, options)
            if "idle" in chosen:
                count = 500 if options.quick else 5000
                for variant in variants:
                    progress(f"{count} idle tunnels: {variant}")
                    measured.idle(variant, samples, count=count)
    if GO in variants:
        report.floors += floors(samples, chosen)
    return report


def _measure(measured: Scenes, variant: str, samples: Samples, options: Options) -> None:
    chosen = options.only
    size = (64 if options.quick else 256) << 20
    seconds = options.choose_milliseconds(full=1500, quick=400) / 1e3
    if "bulk" in chosen:
        measured.bulk(variant, samples, size=size)
    if "grpc" in chosen:
        measured.grpc_bulk(variant, samples, size=size)
    if "trips" in chosen:
        measured.trips(variant, samples, seconds=seconds)
    if "dials" in chosen:
        measured.dials(variant, samples, seconds=seconds)
    if "stalled" in chosen:
        measured.stalled(variant, samples, seconds=seconds)


def floors(samples: Samples, chosen: frozenset[str]) -> list[Floor]:
    """What the project wants of ours against the Go pair."""
    return [
        Floor(
            name=f"{scene}: {measure}, ours/go",
            sense=sense,
            wanted=wanted,
            got=samples.ratio(scene, measure, OURS, GO),
        )
        for section, scene, measure, sense, wanted in _wanted()
        if section in chosen
    ]


def _wanted() -> Iterator[tuple[str, str, str, Sense, float]]:
    for direction in (scenes.DOWN, scenes.UP):
        for tunnels in ("1 tunnel", "10 tunnels"):
            what = f"{direction}, {tunnels}"
            yield "bulk", scenes.BULK, what, ">=", 2.0
            for process in ("server", "agent"):
                yield "bulk", scenes.BULK, f"{what}: {process}", "<=", 0.6
        yield "grpc", scenes.GRPC_BULK, direction, ">=", 2.0
        for process in ("server", "agent"):
            yield "grpc", scenes.GRPC_BULK, f"{direction}: {process}", "<=", 0.6
    yield "trips", scenes.TRIPS, scenes.TRIP_P50, "<=", 1.3
    yield "dials", scenes.DIALS, scenes.CONNECT_50, ">=", 1.0
    yield "dials", scenes.DIALS, scenes.GRPC_50, ">=", 1.0


def _allow_files() -> None:
    """For 5,000 tunnels; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 20_000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


if __name__ == "__main__":
    sys.exit(main("konnectivity", __doc__ or "", SECTIONS, run))
