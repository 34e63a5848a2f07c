"""What capturing a connection costs: by eBPF, by iptables, not at all.

    sudo ./dev bench capture [-j] [--quick] [--rounds N] [--ms N] [--pods N]
        [--only SECTION]...

Sections: ``kernel`` (no proxy, `bench._kernel_scene`), ``proxy`` (the real one,
`bench._proxy_scene`), ``pods`` (many enrolled pods, `bench._many_pods`). docs/benchmarks.md tells
what the figures mean.
"""

from __future__ import annotations

import sys

from bench import _kernel_scene as kernel
from bench import _many_pods as many_pods
from bench import _proxy_scene as proxy
from bench._load import Load
from bench._machine import machine, two_cpus
from bench._report import Floor, Report
from bench._run import Options, Progress, in_turn, main
from bench._samples import Samples
from bench._world import ATTACHED, EBPF, IPTABLES, NONE, World

SECTIONS = ("kernel", "proxy", "pods")
KERNEL_VARIANTS = (NONE, IPTABLES, ATTACHED, EBPF)
PROXY_VARIANTS = (NONE, IPTABLES, EBPF)
NOTES = [
    "attached: the programs run for every connection of the host, but this pod is not enrolled",
    "iptables: the reference rules without statistics; ebpf: capture and statistics of both ends",
]


def run(options: Options, progress: Progress) -> Report:
    """Measures the chosen sections."""
    facts = machine()
    samples = Samples(baselines={many_pods.SCENE: many_pods.FIRST})
    rounds = options.choose_rounds(full=11, quick=3)
    report = Report(bench="capture", machine=facts, rounds=rounds, samples=samples, notes=NOTES)
    with Load() as load:
        if "kernel" in options.only:
            measure_kernel(load, samples, options, rounds, progress)
            report.floors += kernel_floors(samples)
            report.extra_ratios |= kernel_ratios(samples)
        if "proxy" in options.only:
            measure_proxy(load, samples, options, max(1, rounds // 2), progress)
            report.extra_ratios |= proxy_ratios(samples)
        if "pods" in options.only:
            count = options.pods or (100 if options.quick else 1000)
            report.floors += many_pods.measure(load, samples, count, options, progress)
    return report


def measure_kernel(
    load: Load, samples: Samples, options: Options, rounds: int, progress: Progress
) -> None:
    """Scene one."""
    cpu, _ = two_cpus()
    milliseconds = options.choose_milliseconds(full=400, quick=120)
    with World.made() as world:
        for turn in range(rounds):
            progress(f"kernel: round {turn + 1} of {rounds}")
            for mode in kernel.MODES:
                for variant in in_turn(KERNEL_VARIANTS, turn):
                    kernel.measure(
                        load, world, variant, samples,
                        mode=mode, milliseconds=milliseconds, cpu=cpu,
                    )  # fmt: skip


def measure_proxy(
    load: Load, samples: Samples, options: Options, rounds: int, progress: Progress
) -> None:
    """Scene two."""
    cpu, proxy_cpu = two_cpus()
    milliseconds = options.choose_milliseconds(full=1000, quick=250)
    with World.made() as world:
        for turn in range(rounds):
            progress(f"proxy: round {turn + 1} of {rounds}")
            for variant in in_turn(PROXY_VARIANTS, turn):
                proxy.measure(
                    load, world, variant, samples,
                    milliseconds=milliseconds, cpu=cpu, proxy_cpu=proxy_cpu,
                )  # fmt: skip


def kernel_floors(samples: Samples) -> list[Floor]:
    """What the project wants of capture in the kernel."""
    found = []
    for scene in (kernel.OUTBOUND, kernel.INBOUND):
        found += [
            Floor(
                name=f"{scene}: connections a second, ebpf/iptables",
                sense=">=",
                wanted=1.1,
                got=samples.ratio(scene, kernel.CONNECTIONS, "ebpf", "iptables"),
            ),
            Floor(
                name=f"{scene}: added connect time, ebpf/iptables",
                sense="<=",
                wanted=0.5,
                got=samples.added_ratio(scene, kernel.CONNECT_P50, "ebpf", "iptables"),
            ),
            Floor(
                name=f"{scene}: 64 B round trip, ebpf/none",
                sense="<=",
                wanted=1.03,
                got=samples.ratio(scene, kernel.ROUND_TRIP, "ebpf", "none"),
            ),
            Floor(
                name=f"{scene}: bulk, ebpf/none",
                sense=">=",
                wanted=0.97,
                got=samples.ratio(scene, kernel.BULK, "ebpf", "none"),
            ),
        ]
    return found


def kernel_ratios(samples: Samples) -> dict[str, float]:
    """eBPF against iptables, beyond the floors."""
    return {
        f"{scene}: {measure}, ebpf/iptables": samples.ratio(scene, measure, "ebpf", "iptables")
        for scene in (kernel.OUTBOUND, kernel.INBOUND)
        for measure in (kernel.CONNECTION_CPU, kernel.ROUND_TRIP, kernel.BULK)
    }


def proxy_ratios(samples: Samples) -> dict[str, float]:
    """eBPF against iptables on the whole way."""
    return {
        f"{scene}: {measure}, ebpf/iptables": samples.ratio(scene, measure, "ebpf", "iptables")
        for scene in (proxy.OUTBOUND, proxy.INBOUND)
        for measure in (
            proxy.CONNECTIONS,
            proxy.PROXY_CPU,
            proxy.CONNECT_P50,
            proxy.FIRST_BYTE_P50,
            proxy.ROUND_TRIP,
        )
    }


if __name__ == "__main__":
    sys.exit(main("capture", __doc__ or "", SECTIONS, run))
