"""Pins in bpffs: put an object there, open one, and say plainly why either did not work."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Final

from nodenet.errors import NodenetError, NotFound, NotPermitted, NotSupported
from nodenet.kernel.errors import KernelError
from nodenet.kernel.libc import fs_magic
from nodenet.kernel.syscall import Command, address, bpf
from nodenet.paths import BPFFS

#: f_type of statfs(2), linux/magic.h.
_BPF_FS_MAGIC: Final = 0xCAFE4A11

#: Bits of CapEff, linux/capability.h.
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
_CAP_SYS_ADMIN: Final = 21


class NoBpffs(KernelError):
    """There is no bpffs where the pins should be."""


class ForeignDirectory(KernelError):
    """A directory of pins is in somebody else's hands."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"directory of pins {why}: {path}", hint=f"look at it, then: rm -r {path}")
        self.path = path


class PinFailed(KernelError):
    """A pin could not be made, opened or removed; ``path`` and ``errno`` say where and why."""

    def __init__(self, path: Path, number: int, *, hint: str | None = None) -> None:
        super().__init__(f"{os.strerror(number)}: {path}", hint=hint)
        self.path = path
        self.errno = number


def missing_capabilities(status: Path = Path("/proc/self/status")) -> tuple[str, ...]:
    """Capabilities that loading programs takes and this process lacks; none with CAP_SYS_ADMIN."""
    with open(status, encoding="ascii", errors="replace") as lines:
        effective = next((int(line[8:], 16) for line in lines if line.startswith("CapEff:")), 0)
    if effective >> _CAP_SYS_ADMIN & 1:
        return ()
    return tuple(name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1)


def in_user_namespace(mapping: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether capabilities of this process count only inside a user namespace of its own."""
    try:
        return mapping.read_text("ascii").split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def refused(what: str, feature: str) -> NodenetError:
    """The error for an EPERM of the kernel while doing ``what``.

    NotPermitted when the process lacks a capability, NotSupported when it lacks none and the
    kernel refuses all the same (lockdown, a policy module).
    """
    missing = missing_capabilities()
    if missing:
        names = ", ".join(missing)
        return NotPermitted(f"{what}: not permitted, this process lacks {names}; run with sudo")
    if in_user_namespace():
        return NotPermitted(
            f"{what}: not permitted inside a user namespace, where CAP_BPF does not count; "
            "run it as root of the host"
        )
    return NotSupported(feature, "a kernel that does not forbid it (lockdown or a security policy)")


def require_bpffs(path: Path = BPFFS) -> None:
    """Checks that ``path`` is a mounted bpffs; NoBpffs otherwise."""
    try:
        magic = fs_magic(str(path))
    except OSError:
        magic = 0
    if magic != _BPF_FS_MAGIC:
        raise NoBpffs(f"no bpffs at {path}; mount -t bpf none {path}")


def make_directory(path: Path) -> None:
    """Makes a directory for pins, parents included.

    Raises NoBpffs, NotPermitted, and ForeignDirectory for one that somebody else made before:
    everybody may make directories in bpffs, and who owns one can swap the pins in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:
        raise NoBpffs(f"no bpffs at {BPFFS}; mount -t bpf none {BPFFS}") from None
    except OSError as error:
        raise _failed(path, error, "make") from error
    for directory in (path, *path.parents):
        if directory == BPFFS:
            break
        status = directory.stat()
        if status.st_uid not in (0, os.geteuid()):
            raise ForeignDirectory(directory, f"belongs to uid {status.st_uid}")
        if status.st_mode & 0o022:
            raise ForeignDirectory(directory, "may be written by others")


def pin(fd: int, path: Path) -> None:
    """Pins a program, map or link; FileExistsError when the path is taken."""
    name = os.fsencode(path) + b"\0"
    try:
        bpf(Command.OBJ_PIN, struct.pack("<QII", address(name), fd, 0))
    except FileExistsError:
        raise
    except OSError as error:
        raise _failed(path, error, "pin") from error


def get(path: Path) -> int:
    """A new file descriptor of the pinned object; NotFound when there is no such pin."""
    name = os.fsencode(path) + b"\0"
    try:
        return bpf(Command.OBJ_GET, struct.pack("<QII", address(name), 0, 0))
    except FileNotFoundError as error:
        raise NotFound(f"no pinned object: {path}") from error
    except OSError as error:
        raise _failed(path, error, "open") from error


def unpin(path: Path) -> bool:
    """Removes a pin; False when there was none. The object lives on while something holds it."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(path, error, "unpin") from error
    return True


def _failed(path: Path, error: OSError, verb: str) -> NodenetError:
    number = error.errno or 0
    if number == errno.EPERM:
        return refused(f"{verb} {path}", "bpf(2)")
    if number == errno.EACCES:
        return NotPermitted(f"{verb} {path}: permission denied; run with sudo")
    hint = f"{BPFFS} is mounted read-only" if number == errno.EROFS else None
    return PinFailed(path, number, hint=hint)
