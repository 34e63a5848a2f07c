"""Listeners that are older than their pod's entry in the maps: the proxy's and the app's.

The kernel registers a listener at listen(): the proxy's in ``lsn``, and who listens in a template
on the socket, which each accepted connection inherits. Sockets that listened before the pod was
enrolled, or before the pins were rebuilt, have neither. They are found by sock_diag, which names
their cgroup; the cgroup names its processes, and the descriptor comes by pidfd_getfd.

What is not found costs only a name: connections of that listener show no process. The proxy's
listeners are looked for in the agent's cgroup alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from nodenet import abi
from nodenet.abi import ConnFlag, Direction
from nodenet.capture import programs
from nodenet.kernel.cgroups import Cgroup, CgroupPaths
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.kernel.sock_diag import TcpSocket, tcp_sockets

_LISTEN: Final = 10
#: pidfd_getfd(2), the same number on every architecture. Linux 5.6.
_PIDFD_GETFD: Final = 438
#: A cgroup with more processes (a host without cgroups per service) is not searched: enrolling
#: must stay a matter of milliseconds.
MAX_PROCESSES: Final = 64

OWN_PORTS: Final = (abi.OUTBOUND_PORT, abi.INBOUND_PORT, abi.DNS_PORT, abi.HBONE_PORT)


def register_listeners(maps: Mapping[str, Map], ns: NetNs, cookie: int) -> tuple[int, ...]:
    """Registers what listens in the namespace already; the proxy's ports it found."""
    listeners = tcp_sockets(ns, (_LISTEN,))
    if not listeners:
        return ()
    paths = CgroupPaths()
    agent = programs.agent_cgroup(maps, paths)
    by_cgroup: dict[int, dict[int, TcpSocket]] = {}
    for listener in listeners:
        if listener.cgroup_id is not None:
            by_cgroup.setdefault(listener.cgroup_id, {})[listener.inode] = listener
    adopted: list[int] = []
    for cgroup_id, wanted in by_cgroup.items():
        name = paths.name(cgroup_id)
        if name is None:
            continue
        cgroup = Cgroup.open(paths.mount / name.lstrip("/"), paths.mount)
        of_agent = agent is not None and cgroup.path.is_relative_to(agent.path)
        for pid, fd, inode in _sockets_of(cgroup, unbounded=of_agent):
            found = wanted.get(inode)
            copy = _fetch(pid, fd) if found is not None else None
            if found is None or copy is None:
                continue
            try:
                _describe(maps, copy, pid, cgroup_id, cookie, found, of_agent)
                if of_agent and found.local_port in OWN_PORTS:
                    key = abi.LSN_KEY.pack(netns=cookie, port=found.local_port)
                    maps["lsn"].update(key, struct.pack("<Q", copy))
                    adopted.append(found.local_port)
            finally:
                os.close(copy)
    return tuple(adopted)


def _describe(
    maps: Mapping[str, Map],
    fd: int,
    pid: int,
    cgroup_id: int,
    cookie: int,
    listener: TcpSocket,
    of_agent: bool,
) -> None:
    """Puts the template on the socket that sock_ops would have made at listen()."""
    flags = ConnFlag.LISTENER | (ConnFlag.PROXY if of_agent else ConnFlag(0))
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            comm = file.read().rstrip(b"\n")[:15]
    except OSError:
        return
    template = abi.CONN.pack(
        netns=cookie,
        cgroup=cgroup_id,
        pid=pid,
        comm=comm,
        local_port=listener.local_port,
        dir=Direction.IN,
        state=_LISTEN,
        flags=flags,
    )
    maps["conns"].update(struct.pack("<i", fd), template)


def _sockets_of(cgroup: Cgroup, *, unbounded: bool) -> Iterator[tuple[int, int, int]]:
    """(pid, descriptor, inode) of each socket of the cgroup's processes that can be seen."""
    pids = cgroup.pids()
    if len(pids) > MAX_PROCESSES and not unbounded:
        return
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # it ended meanwhile
        for name in names:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                yield pid, int(name), int(target[8:-1])


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
