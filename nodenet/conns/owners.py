"""Which process holds a socket, found in /proc: for sockets the kernel programs saw no connect of.

Slow compared with a record (a readlink per open file), so it is asked only for sockets whose
record names no process, and stops when all are found.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

_PREFIX = "socket:["


class Process(NamedTuple):
    """A process by its id and the kernel's name for it (15 characters)."""

    pid: int
    comm: str


def socket_owners(inodes: Collection[int], netns_inode: int) -> dict[int, Process]:
    """Socket inode -> process, for those found.

    Processes inside the namespace are asked first; others may hold a socket too, by having been in
    there or by having been given it. Of several holders the lowest pid is named: the one that
    opened it, for a server that forks.
    """
    wanted = set(inodes)
    found: dict[int, Process] = {}
    strangers: list[int] = []
    for pid in _pids():
        if not wanted:
            return found
        if _netns_of(pid) == netns_inode:
            _search(pid, wanted, found)
        else:
            strangers.append(pid)
    for pid in strangers:
        if not wanted:
            break
        _search(pid, wanted, found)
    return found


def comm_of(pid: int) -> str | None:
    """The kernel's name of a process, None when it has gone."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().rstrip(b"\n").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None


def _search(pid: int, wanted: set[int], found: dict[int, Process]) -> None:
    comm: str | None = None
    for inode in _socket_inodes(pid):
        if inode in wanted:
            comm = comm or comm_of(pid) or "?"
            found[inode] = Process(pid, comm)
            wanted.discard(inode)
            if not wanted:
                return


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _netns_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # gone, or a kernel thread without the right to look
        return None


def _socket_inodes(pid: int) -> Iterator[int]:
    # in the order of the descriptors: a server's listener comes before its connections
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    target = os.readlink(entry.path)
                    if target.startswith(_PREFIX):
                        yield int(target[len(_PREFIX) : -1])
    except OSError:  # the process has gone, or may not be looked at
        return
