"""Many enrolled pods: what enrolling one more costs, and what a connection notices of the others.

A pod here is a namespace whose loopback has one more address; it has no link, so a thousand of them
are made in seconds.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import time
from typing import Final

from bench import _kernel_scene as kernel
from bench._load import Load
from bench._machine import two_cpus
from bench._report import Floor
from bench._run import Options, Progress
from bench._samples import Samples
from bench._world import POD_NAME, Standing, World, loaded
from nodenet.capture.session import Capture, agent_cgroup_path
from nodenet.errors import NodenetError
from nodenet.lab.topology import Namespace

SCENE: Final = "enrolled pods"
ENROLL_CPU: Final = "enroll one more, CPU"
COMMAND_CPU: Final = "nodenet capture enroll, CPU"
CONNECT_P50: Final = "connect p50 in one of them"
FIRST: Final = "1 pod"
#: In a block of documentation addresses nobody else here uses: 65,536 pods.
_ADDRESSES: Final = ipaddress.IPv4Network("198.18.0.0/16")
_WANTED_CPU_MS: Final = 5.0


def variant_name(count: int) -> str:
    """The name of the variant with so many pods."""
    return f"{count} pods"


def measure(
    load: Load, samples: Samples, count: int, options: Options, progress: Progress
) -> list[Floor]:
    """Everything with one pod enrolled, and again with ``count``."""
    many = variant_name(count)
    with World.made() as world, loaded(world) as capture:
        capture.enroll(world.pod.path, name=POD_NAME)
        spare = _pod(world, count)
        progress(f"pods: {FIRST}")
        _measure(load, world, capture, spare, samples, FIRST, options)
        progress(f"pods: making and enrolling {count - 1}")
        for number in range(count - 1):
            capture.enroll(_pod(world, number).path, name=f"bench/{number}")
        progress(f"pods: {many}")
        _measure(load, world, capture, spare, samples, many, options)
    return [
        Floor(
            name=f"CPU ms of enrolling one more of {count} pods",
            sense="<=",
            wanted=_WANTED_CPU_MS,
            got=samples.median(SCENE, ENROLL_CPU, many),
        )
    ]


def _pod(world: World, number: int) -> Namespace:
    made = world.topology.namespace(f"p{number}")
    with made.netlink() as link:
        link.address("lo", f"{_ADDRESSES[number + 1]}/32")
    return made


def _measure(
    load: Load,
    world: World,
    capture: Capture,
    spare: Namespace,
    samples: Samples,
    variant: str,
    options: Options,
) -> None:
    for _ in range(10 if options.quick else 50):
        before = time.process_time()
        result = capture.enroll(spare.path, name="bench/spare")
        used = time.process_time() - before
        capture.unenroll(result.record.netns_cookie)
        samples.record(SCENE, ENROLL_CPU, "ms", variant, used * 1e3)
    for _ in range(3 if options.quick else 7):
        samples.record(SCENE, COMMAND_CPU, "ms", variant, _command_cpu_ms(capture, spare))
    cpu, _ = two_cpus()
    milliseconds = options.choose_milliseconds(full=400, quick=150)
    standing = Standing(captured=True, agent_cgroup=agent_cgroup_path(world.ebpf))
    outbound = next(iter(kernel.paths(world, standing)))
    for _ in range(3 if options.quick else 9):
        sample = kernel.run(load, world, standing, outbound, "conn", milliseconds, cpu)
        samples.record(SCENE, CONNECT_P50, "us", variant, sample.p50_ns / 1e3)


def _command_cpu_ms(capture: Capture, spare: Namespace) -> float:
    """CPU of the command as a process of its own, the interpreter's start included."""
    argv = [sys.executable, "-m", "nodenet.cli.main", "--id", str(capture.instance.id)]
    argv += ["-q", "capture", "enroll", "--wait", "0s", f"netns:{spare.path}"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = process.stderr.read().decode().strip()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise NodenetError(f"{' '.join(argv[1:])}: {said}")
    for record in capture.records():
        if record.netns == str(spare.path):
            capture.unenroll(record.netns_cookie)
    return (usage.ru_utime + usage.ru_stime) * 1e3
