"""The cgroups of a lab's processes, and ending whatever is still in them.

Each pod has one, so it can be named as a capture target like a container's, and everything that
was started inside a pod (also by hand, with `lab exec`) can be ended with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path
from typing import Final

from nodenet.kernel.cgroups import Cgroup, Cgroup2Missing, CgroupBusy, CgroupGone, cgroup2_mount
from nodenet.lab.plan import Host, Pod
from nodenet.paths import Instance

#: Seconds that killed processes may take to leave their cgroup.
EMPTY_SECONDS: Final = 5.0


def lab_cgroup(instance: Instance) -> Path | None:
    """Where the lab's processes go; None on a host without cgroup2 (iptables backend)."""
    try:
        return cgroup2_mount() / instance.name
    except Cgroup2Missing:
        return None


def host_cgroup(root: Path, host: Host) -> Path:
    """The cgroup of what runs in a pod or, by hand, in a node; the proxies have their own."""
    return root / ("pods" if isinstance(host, Pod) else "nodes") / host.name


def proxy_cgroup(root: Path) -> Path:
    """The cgroup of the lab's proxies: by it the capture knows their sockets."""
    return root / "ztunnel"


def kill_tree(root: Path) -> None:
    """Kills every process below ``root`` and waits until they are gone; absent is fine."""
    if root.is_dir():
        _kill(Cgroup.open(root))
        _await_empty(root, time.monotonic() + EMPTY_SECONDS)


def remove_tree(root: Path) -> None:
    """Removes ``root`` and everything below it, processes too; absent is fine.

    Raises CgroupBusy when a process outlives SIGKILL for `EMPTY_SECONDS`.
    """
    deadline = time.monotonic() + EMPTY_SECONDS
    while root.is_dir():
        tree = Cgroup.open(root)
        try:
            _kill(tree)
            _await_empty(root, deadline)
            tree.remove()
        except CgroupGone:
            return
        except CgroupBusy:
            # somebody moved in between the kill and the removal
            if time.monotonic() >= deadline:
                raise


def _kill(tree: Cgroup) -> None:
    try:
        (tree.path / "cgroup.kill").write_text("1")
    except OSError:  # before Linux 5.14
        for pid in tree.pids(below=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _await_empty(root: Path, deadline: float) -> None:
    """Returns when no process is left below ``root``, or at the deadline."""
    try:
        fd = os.open(root / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)  # the kernel signals each change of the file
        while b"populated 0" not in os.pread(fd, 256, 0):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            poll.poll(left * 1000)
    finally:
        os.close(fd)
