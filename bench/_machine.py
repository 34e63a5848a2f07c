"""What the numbers were measured on, and which CPUs the benchmarks use."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from nodenet.errors import NotPermitted, NotSupported
from nodenet.paths import BPFFS


def machine() -> dict[str, Any]:
    """Kernel, processor, Python, the load at the start, and other instances of nodenet.

    Programs of another instance run for every connection of this host too, also for those that are
    not captured: with one loaded, "none" is not nothing.
    """
    return {
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "other_instances": sorted(path.name for path in BPFFS.glob("nodenet*")),
    }


def two_cpus() -> tuple[int, int]:
    """The CPU that is measured on, and another one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise NotSupported("bench", "two CPUs")
    return usable[0], usable[1]


def as_installed() -> dict[str, str]:
    """The environment of a measured command: it keeps bytecode, as an installation has it.

    Without, modules younger than their bytecode are compiled in every process (10 ms).
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def need_root() -> None:
    """NotPermitted for anybody who cannot make namespaces."""
    if os.geteuid() != 0:
        raise NotPermitted("benchmarks make network namespaces", hint="run with sudo")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
