"""System calls that Python 3.11 has no wrapper for: namespaces, mounts, file system type, handles.

Each raises OSError with the errno and, where there is one, the path. Constants are the kernel's
(linux/sched.h, linux/mount.h, linux/magic.h).
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

CLONE_NEWNET: Final = 0x40000000

MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_SHARED: Final = 1 << 20
MNT_DETACH: Final = 2

CGROUP2_MAGIC: Final = 0x63677270
CGROUP1_MAGIC: Final = 0x27E0EB

#: The mount API of Linux 5.2 (linux/mount.h); these system calls have one number everywhere.
_FSOPEN: Final = 430
_FSCONFIG: Final = 431
_FSMOUNT: Final = 432
_FSOPEN_CLOEXEC: Final = 1
_FSCONFIG_CMD_CREATE: Final = 6
_FSMOUNT_CLOEXEC: Final = 1

#: File handle type of kernfs, whose 8 bytes are the inode number (include/linux/exportfs.h).
FILEID_KERNFS: Final = 0xFE

_libc: Final = ctypes.CDLL(None, use_errno=True)
# struct statfs starts with f_type; its size is 120 bytes on 64-bit machines
_STATFS_BYTES: Final = 256

_setns = _libc.setns
_setns.argtypes = (ctypes.c_int, ctypes.c_int)
_unshare = _libc.unshare
_unshare.argtypes = (ctypes.c_int,)
_mount = _libc.mount
_mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
)
_umount2 = _libc.umount2
_umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_statfs = _libc.statfs
_statfs.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
_open_by_handle_at = _libc.open_by_handle_at
_open_by_handle_at.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


def _check(result: int, path: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def setns(fd: int, kind: int = CLONE_NEWNET) -> None:
    """Moves the calling thread, and only it, into the namespace behind the descriptor."""
    _check(_setns(fd, kind))


def unshare(flags: int) -> None:
    """Gives the calling thread namespaces of its own."""
    _check(_unshare(flags))


def mount(source: str, target: str, fstype: str, flags: int) -> None:
    """mount(2) without data."""
    _check(_mount(os.fsencode(source), os.fsencode(target), fstype.encode(), flags, None), target)


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_umount2(os.fsencode(target), flags), target)


def mount_unseen(fstype: str) -> int:
    """A new instance of a file system that no path leads to, gone when its descriptor is closed.

    The descriptor is of its root directory (O_PATH), for the ``dir_fd`` of other calls. Needs
    CAP_SYS_ADMIN; OSError with ENOSYS before Linux 5.2.
    """
    context = _check(_syscall(_FSOPEN, fstype.encode(), _FSOPEN_CLOEXEC))
    try:
        _check(_syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0))
        return _check(_syscall(_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0))
    finally:
        os.close(context)


def fs_magic(path: str) -> int:
    """``f_type`` of the file system the path is on (linux/magic.h)."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    _check(_statfs(os.fsencode(path), buffer), path)
    return int(struct.unpack_from("@l", buffer)[0])


def open_by_kernfs_id(mount_fd: int, inode: int) -> int:
    """A descriptor for the kernfs directory (a cgroup) with this 64-bit id.

    ``mount_fd`` is anything open on the same mount. Needs CAP_DAC_READ_SEARCH; ESTALE when there
    is no such directory.
    """
    handle = ctypes.create_string_buffer(struct.pack("@IiQ", 8, FILEID_KERNFS, inode), 16)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    return _check(_open_by_handle_at(mount_fd, handle, flags))
