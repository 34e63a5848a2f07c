"""What counting connections costs, and how fast the counts are read.

    sudo ./dev bench stats [-j] [--quick] [--rounds N] [--ms N] [--only SECTION]...

Sections: ``cost`` (the hooks on against off, `bench._stats_scene`), ``maps`` and ``listing``
(`bench._reading`). docs/benchmarks.md tells what the figures mean.
"""

from __future__ import annotations

import sys

from bench import _kernel_scene as kernel
from bench import _reading as reading
from bench import _stats_scene as scene
from bench._load import Load
from bench._machine import machine, two_cpus
from bench._report import Floor, Report
from bench._run import Options, Progress, in_turn, main
from bench._samples import Samples
from bench._world import World

SECTIONS = ("cost", "maps", "listing")
NOTES = [
    "attached: the programs run for every connection of the host, but this pod is not enrolled",
    "recorded: enrolled, counted, not captured; watched: besides, conn watch reads every event",
]


def run(options: Options, progress: Progress) -> Report:
    """Measures the chosen sections."""
    facts = machine()
    samples = Samples(baselines={reading.MAPS: reading.BPFTOOL})
    rounds = options.choose_rounds(full=11, quick=2)
    report = Report(bench="stats", machine=facts, rounds=rounds, samples=samples, notes=NOTES)
    with Load() as load:
        if "cost" in options.only:
            measure_cost(load, samples, options, rounds, progress)
            report.floors += cost_floors(samples)
        if "maps" in options.only:
            report.floors += reading.measure_maps(samples, options, progress)
        if "listing" in options.only:
            report.floors += reading.measure_listing(load, samples, options, progress)
    return report


def measure_cost(
    load: Load, samples: Samples, options: Options, rounds: int, progress: Progress
) -> None:
    """Both scenes in turn, all variants of a mode next to each other."""
    cpu, watch_cpu = two_cpus()
    milliseconds = options.choose_milliseconds(full=400, quick=120)
    with World.made() as world:
        for turn in range(rounds):
            progress(f"cost: round {turn + 1} of {rounds}")
            for mode in kernel.MODES:
                for which in (scene.OPENED, scene.ACCEPTED):
                    for variant in in_turn(scene.variants(which, watch_cpu), turn):
                        scene.measure(
                            load, world, which, variant, samples,
                            mode=mode, milliseconds=milliseconds, cpu=cpu,
                        )  # fmt: skip


def cost_floors(samples: Samples) -> list[Floor]:
    """What the project wants of the statistics."""
    found = []
    for which in (scene.OPENED, scene.ACCEPTED):
        found += [
            Floor(
                name=f"{which}: 64 B round trip, recorded/none",
                sense="<=",
                wanted=1.03,
                got=samples.ratio(which, kernel.ROUND_TRIP, scene.RECORDED, "none"),
            ),
            Floor(
                name=f"{which}: bulk, recorded/none",
                sense=">=",
                wanted=0.97,
                got=samples.ratio(which, kernel.BULK, scene.RECORDED, "none"),
            ),
        ]
    return found


if __name__ == "__main__":
    sys.exit(main("stats", __doc__ or "", SECTIONS, run))
