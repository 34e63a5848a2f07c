"""Sysctls are looked up in a procfs of their own, where that may be."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.kernel import libc
from nodenet.kernel.netns import NetNs
from nodenet.kernel.sysctl import Sysctls
from nodenet.lab.topology import Topology

pytestmark = [pytest.mark.root]

TTL = "net.ipv4.ip_default_ttl"
_SETS_AND_READS = f"""
from nodenet.errors import NodenetError
from nodenet.kernel import sysctl
try:
    sysctl.write_int({TTL!r}, 77)
except NodenetError as error:
    print(type(error).__name__)
print(sysctl.read_int({TTL!r}))
"""


@pytest.fixture
def ns() -> Iterator[NetNs]:
    with Topology() as topology, NetNs.open(topology.namespace("pod").path) as made:
        yield made


def sets_and_reads(*around: str) -> list[str]:
    """What a process with a network namespace of its own says, started by ``around``."""
    command = ["unshare", "--net", *around, sys.executable, "-c", _SETS_AND_READS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.split()


def descriptors() -> dict[int, os.stat_result]:
    """What this process has open."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that the list was read by
            found[int(name)] = os.stat(int(name))
    return found


def test_an_unseen_procfs_is_none_of_the_mounts() -> None:
    before = Path("/proc/self/mounts").read_text()
    procfs = libc.mount_unseen("proc")
    try:
        assert Path("/proc/self/mounts").read_text() == before
        seen = os.stat("self/comm", dir_fd=procfs)
        assert seen.st_dev != os.stat("/proc/self/comm").st_dev
    finally:
        os.close(procfs)


def test_nothing_is_looked_up_in_the_procfs_that_all_see(ns: NetNs) -> None:
    before = descriptors()
    with ns.entered(), Sysctls() as sysctls:
        assert sysctls.read_int(TTL) == 64
        opened = [found for fd, found in descriptors().items() if fd not in before]
        assert opened
        assert os.stat("/proc").st_dev not in {found.st_dev for found in opened}
    assert descriptors().keys() == before.keys()


def test_a_proc_sys_that_is_read_only_stays_so() -> None:
    script = 'mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec "$@"'
    said = sets_and_reads("--mount", "sh", "-c", script, "sh")
    assert said == ["NotPermitted", "64"]


def test_without_the_right_to_mount_it_is_proc_sys() -> None:
    assert sets_and_reads("setpriv", "--bounding-set=-sys_admin") == ["77"]
