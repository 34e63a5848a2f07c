"""Reading and writing /proc/sys/net of the namespace the calling thread is in.

/proc/sys/net shows the network namespace of the task that opens the file, task by task: a thread
inside a pod's namespace sees the pod's values while its process lives elsewhere. (/proc/net is
different: it follows the thread group's leader.)
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from nodenet.errors import NotPermitted
from nodenet.kernel.errors import KernelError

ROOT: Final = Path("/proc/sys")


class SysctlFailed(KernelError):
    """The kernel refused to read or write a sysctl."""


def path_of(name: str) -> Path:
    """``net.ipv4.tcp_fwmark_accept`` to its file. Interface names with dots are not supported."""
    return ROOT.joinpath(*name.split("."))


def read_int(name: str) -> int | None:
    """The number, or None when this kernel or namespace has no such setting."""
    path = path_of(name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(fd, 64))
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SysctlFailed(f"cannot read sysctl {name}: {path}: {error.strerror}") from error


def write_int(name: str, value: int) -> None:
    """Sets it. NotPermitted when /proc/sys is read-only, SysctlFailed otherwise."""
    path = path_of(name)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % value)
        finally:
            os.close(fd)
    except OSError as error:
        text = f"cannot set sysctl {name} to {value}: {path}: {error.strerror}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "needs CAP_NET_ADMIN and a writable /proc/sys"
            raise NotPermitted(text, hint=hint) from error
        raise SysctlFailed(text) from error


def ipv6_on_loopback() -> bool:
    """Whether the namespace has IPv6 and its loopback uses it."""
    return read_int("net.ipv6.conf.lo.disable_ipv6") == 0
