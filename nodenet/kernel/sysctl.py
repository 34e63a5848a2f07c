"""Reading and writing /proc/sys/net of the namespace the calling thread is in.

/proc/sys/net shows the network namespace of the task that opens the file, task by task: a thread
inside a pod's namespace sees the pod's values while its process lives elsewhere. (/proc/net is
different: it follows the thread group's leader.)

The kernel remembers the entries of all namespaces that anybody has looked at under one name, and
looks for a namespace's ``net/ipv4`` by going through them, the newest first: with a thousand pods
up to a millisecond. So `Sysctls` looks in a procfs of its own, where nobody else has been.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final, Self

from nodenet.errors import NotPermitted
from nodenet.kernel import libc
from nodenet.kernel.errors import KernelError

ROOT: Final = Path("/proc/sys")
_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class SysctlFailed(KernelError):
    """The kernel refused to read or write a sysctl."""


def path_of(name: str) -> Path:
    """``net.ipv4.tcp_fwmark_accept`` to its file. Interface names with dots are not supported."""
    return ROOT.joinpath(*name.split("."))


class Sysctls:
    """The ``net.…`` settings of the namespace the calling thread is in. Close it.

    It keeps the namespace's ``net/ipv4`` and ``net/ipv6`` open, and is usable only inside that
    namespace: from elsewhere the kernel finds nothing in them.
    """

    def __init__(self) -> None:
        self._root: int | None = None
        self._directories: dict[str, int] = {}

    def close(self) -> None:
        """Closes what is open; a second time does nothing."""
        while self._directories:
            os.close(self._directories.popitem()[1])
        if self._root is not None:
            os.close(self._root)
            self._root = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_int(self, name: str) -> int | None:
        """The number, or None when this kernel or namespace has no such setting."""
        try:
            fd = self._open(name, os.O_RDONLY)
            try:
                return int(os.read(fd, 64))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            where = path_of(name)
            raise SysctlFailed(f"cannot read sysctl {name}: {where}: {error.strerror}") from error

    def write_int(self, name: str, value: int) -> None:
        """Sets it. NotPermitted when /proc/sys is read-only, SysctlFailed otherwise."""
        try:
            fd = self._open(name, os.O_WRONLY)
            try:
                os.write(fd, b"%d" % value)
            finally:
                os.close(fd)
        except OSError as error:
            text = f"cannot set sysctl {name} to {value}: {path_of(name)}: {error.strerror}"
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                hint = "needs CAP_NET_ADMIN and a writable /proc/sys"
                raise NotPermitted(text, hint=hint) from error
            raise SysctlFailed(text) from error

    def ipv6_on_loopback(self) -> bool:
        """Whether the namespace has IPv6 and its loopback uses it."""
        return self.read_int("net.ipv6.conf.lo.disable_ipv6") == 0

    def _open(self, name: str, flags: int) -> int:
        root, family, rest = name.split(".", 2)
        if root != "net":
            raise SysctlFailed(f"sysctl {name}: not of a network namespace")
        directory = self._directories.get(family)
        if directory is None:
            if self._root is None:
                self._root = _open_root()
            directory = os.open(f"sys/{root}/{family}", _DIRECTORY, dir_fd=self._root)
            self._directories[family] = directory
        return os.open(rest.replace(".", "/"), flags | os.O_CLOEXEC, dir_fd=directory)


def _open_root() -> int:
    """A procfs that only this object sees; /proc where that is not to be had."""
    # a container's read-only /proc/sys is somebody's decision, not to be gone around
    if not os.statvfs(ROOT).f_flag & os.ST_RDONLY:
        with contextlib.suppress(OSError):  # no right to mount, or Linux before 5.2
            return libc.mount_unseen("proc")
    return os.open(ROOT.parent, _DIRECTORY)


def read_int(name: str) -> int | None:
    """As `Sysctls.read_int`, of the namespace the calling thread is in."""
    with Sysctls() as sysctls:
        return sysctls.read_int(name)


def write_int(name: str, value: int) -> None:
    """As `Sysctls.write_int`, of the namespace the calling thread is in."""
    with Sysctls() as sysctls:
        sysctls.write_int(name, value)


def ipv6_on_loopback() -> bool:
    """As `Sysctls.ipv6_on_loopback`, of the namespace the calling thread is in."""
    with Sysctls() as sysctls:
        return sysctls.ipv6_on_loopback()
