"""Many enrolled pods: what enrolling one more costs, and what a connection notices of the others.

A pod here is a namespace whose loopback has one more address; it has no link, so a thousand of them
are made in seconds.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import _kernel_scene as kernel
from bench._load import Load
from bench._machine import as_installed, two_cpus
from bench._report import Floor
from bench._run import Options, Progress
from bench._samples import Samples
from bench._world import POD_NAME, Standing, World, loaded
from nodenet.capture.session import Capture, agent_cgroup_path
from nodenet.errors import NodenetError
from nodenet.lab.topology import Namespace

SCENE: Final = "enrolled pods"
ENROLL_CPU: Final = "enroll a new pod, CPU"
ENROLL_OLDEST_CPU: Final = "enroll the oldest pod, CPU"
COMMAND_CPU: Final = "nodenet capture enroll, CPU"
CONNECT_P50: Final = "connect p50 in one of them"
FIRST: Final = "1 pod"
#: In a block of documentation addresses nobody else here uses: 65,536 pods.
_ADDRESSES: Final = ipaddress.IPv4Network("198.18.0.0/16")
#: What network plugins read in every pod. The kernel keeps entries of it, see `_measure`.
_LOOKED_AT: Final = (
    Path("/proc/sys/net/ipv4/ip_forward"),
    Path("/proc/sys/net/ipv6/conf/all/forwarding"),
)
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
        numbers = itertools.count()
        oldest = _pod(world, next(numbers))
        progress(f"pods: {FIRST}")
        _measure(load, world, capture, oldest, numbers, samples, FIRST, options)
        progress(f"pods: making and enrolling {count - 1}")
        for number in itertools.islice(numbers, count - 1):
            capture.enroll(_pod(world, number).path, name=f"bench/{number}")
        progress(f"pods: {many}")
        _measure(load, world, capture, oldest, numbers, samples, many, options)
    return [
        Floor(
            name=f"{many}: {measure} ms",
            sense="<=",
            wanted=_WANTED_CPU_MS,
            got=samples.median(SCENE, measure, many),
        )
        for measure in (ENROLL_CPU, ENROLL_OLDEST_CPU)
    ]


def _pod(world: World, number: int) -> Namespace:
    made = world.topology.namespace(f"p{number}")
    with made.netlink() as link:
        link.address("lo", f"{_ADDRESSES[number + 1]}/32")
    with made.entered():
        for path in _LOOKED_AT:
            path.read_text()
    return made


def _measure(
    load: Load,
    world: World,
    capture: Capture,
    oldest: Namespace,
    numbers: Iterator[int],
    samples: Samples,
    variant: str,
    options: Options,
) -> None:
    # In /proc/sys/net the kernel keeps what namespaces have in a list, the newest first: a pod just
    # made is found at once, one that was there before all the others last.
    for number in itertools.islice(numbers, 10 if options.quick else 50):
        new = _enroll_cpu_ms(capture, _pod(world, number))
        samples.record(SCENE, ENROLL_CPU, "ms", variant, new)
        old = _enroll_cpu_ms(capture, oldest)
        samples.record(SCENE, ENROLL_OLDEST_CPU, "ms", variant, old)
    for number in itertools.islice(numbers, 3 if options.quick else 7):
        used_ms = _command_cpu_ms(capture, _pod(world, number))
        samples.record(SCENE, COMMAND_CPU, "ms", variant, used_ms)
    cpu, _ = two_cpus()
    milliseconds = options.choose_milliseconds(full=400, quick=150)
    standing = Standing(captured=True, agent_cgroup=agent_cgroup_path(world.ebpf))
    outbound = next(iter(kernel.paths(world, standing)))
    for _ in range(3 if options.quick else 9):
        sample = kernel.run(load, world, standing, outbound, "conn", milliseconds, cpu)
        samples.record(SCENE, CONNECT_P50, "us", variant, sample.p50_ns / 1e3)


def _enroll_cpu_ms(capture: Capture, pod: Namespace) -> float:
    """CPU of this process for one enrolment, which is undone."""
    before = time.process_time()
    result = capture.enroll(pod.path, name="bench/one-more")
    used = time.process_time() - before
    capture.unenroll(result.record.netns_cookie)
    return used * 1e3


def _command_cpu_ms(capture: Capture, fresh: Namespace) -> float:
    """CPU of the command as a process of its own, the interpreter's start included."""
    argv = [sys.executable, "-m", "nodenet.cli.main", "--id", str(capture.instance.id)]
    argv += ["-q", "capture", "enroll", "--wait", "0s", f"netns:{fresh.path}"]
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=as_installed()
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read().decode().strip()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise NodenetError(f"{' '.join(argv[1:])}: {said}")
    for record in capture.records():
        if record.netns == str(fresh.path):
            capture.unenroll(record.netns_cookie)
    return (usage.ru_utime + usage.ru_stime) * 1e3
