"""Finding the namespace of a pod again, whatever has become of the path it was enrolled by.

Only the cookie says which namespace it is: the kernel gives a path's name and an inode number to
others as soon as they are free.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Protocol

from nodenet.capture.targets import NETNS_DIRECTORIES
from nodenet.errors import NotFound, NotPermitted, UsageError
from nodenet.kernel.netns import NetNs


class Placed(Protocol):
    """What names a namespace and where it was: a `PodRecord`, for one."""

    @property
    def netns(self) -> str:
        """Path of the namespace at some time."""

    @property
    def netns_inode(self) -> int:
        """Its inode."""

    @property
    def netns_cookie(self) -> int:
        """Its cookie."""


def open_namespace(record: Placed) -> NetNs | None:
    """The namespace, by its path or by a process that lives in it; None when it is gone.

    NotPermitted when the path may not be opened. The caller closes it.
    """
    with contextlib.suppress(NotFound, UsageError):
        ns = NetNs.open(record.netns)
        if _is_it(ns, record):
            return ns
    wanted = f"net:[{record.netns_inode}]"
    for pid, link in _processes():
        if link == wanted:
            with contextlib.suppress(NotFound, UsageError, NotPermitted):
                ns = NetNs.of_pid(pid)
                if _is_it(ns, record):
                    return ns
    return None


def living_cookies() -> set[int]:
    """The cookies of all namespaces that a process is in, or a path of the usual places names."""
    paths = {link: f"/proc/{pid}/ns/net" for pid, link in _processes()}
    named = [str(p) for d in NETNS_DIRECTORIES if d.is_dir() for p in d.iterdir()]
    found: set[int] = set()
    for path in (*paths.values(), *named):
        with contextlib.suppress(NotFound, UsageError, NotPermitted), NetNs.open(path) as ns:
            found.add(ns.cookie())
    return found


def _is_it(ns: NetNs, record: Placed) -> bool:
    """Closes the namespace when it is another one."""
    try:
        same = ns.inode == record.netns_inode and ns.cookie() == record.netns_cookie
    except BaseException:
        ns.close()
        raise
    if not same:
        ns.close()
    return same


def _processes() -> Iterator[tuple[int, str]]:
    """Each process with its namespace as ``net:[inode]``."""
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    yield int(entry.name), os.readlink(f"/proc/{entry.name}/ns/net")
