"""Taking over proxy listeners that are older than the pod's entry in the maps.

The kernel registers a listener in ``lsn`` at listen(). One that is older than its pod's enrolment,
or before the pins were rebuilt, is not there; it is found by sock_diag and put in by its
descriptor, fetched from the proxy with pidfd_getfd. Only sockets of the agent's cgroup count.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection, Mapping
from typing import Final

from nodenet import abi
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.kernel.sock_diag import SockDiag

_LISTEN: Final = 10
#: pidfd_getfd(2), the same number on every architecture. Linux 5.6.
_PIDFD_GETFD: Final = 438


def adopt_listeners(
    maps: Mapping[str, Map], ns: NetNs, cookie: int, agent: Cgroup, ports: Collection[int]
) -> tuple[int, ...]:
    """Registers the agent's listeners on those ports of the namespace; the ports it found."""
    with SockDiag(ns) as diag:
        wanted = {s.inode: s.local_port for s in diag.dump_tcp((_LISTEN,)) if s.local_port in ports}
    if not wanted:
        return ()
    adopted = []
    for pid in agent.pids(below=True):
        for fd, inode in _sockets_of(pid):
            port = wanted.get(inode)
            if port is None:
                continue
            copy = _fetch(pid, fd)
            if copy is None:
                continue
            try:
                key = abi.LSN_KEY.pack(netns=cookie, port=port)
                maps["lsn"].update(key, struct.pack("<Q", copy))
                adopted.append(port)
            finally:
                os.close(copy)
    return tuple(adopted)


def _sockets_of(pid: int) -> list[tuple[int, int]]:
    """(descriptor, inode) of each socket of a process; empty when it ended meanwhile."""
    found = []
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.append((int(name), int(target[8:-1])))
    return found


def _fetch(pid: int, fd: int) -> int | None:
    """A copy of another process's descriptor; None when either is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, fd, 0)
        return None if copy < 0 else int(copy)
    finally:
        os.close(pidfd)
