"""The bpf(2) system call through ctypes: command numbers, attribute buffers, errno to OSError.

Attribute layouts are written where they are used; the numbers are those of linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntEnum
from typing import Final

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_ulong)
_bytes_address = ctypes.pythonapi.PyBytes_AsString
_bytes_address.restype = ctypes.c_void_p
_bytes_address.argtypes = (ctypes.py_object,)
_bytearray_address = ctypes.pythonapi.PyByteArray_AsString
_bytearray_address.restype = ctypes.c_void_p
_bytearray_address.argtypes = (ctypes.py_object,)

#: Internal to the kernel, but it leaks out of bpf(2) for map operations that a type lacks.
ENOTSUPP: Final = 524


class Command(IntEnum):
    """``enum bpf_cmd``, the ones used here."""

    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_DELETE_ELEM = 3
    MAP_GET_NEXT_KEY = 4
    PROG_LOAD = 5
    OBJ_PIN = 6
    OBJ_GET = 7
    PROG_TEST_RUN = 10
    PROG_GET_NEXT_ID = 11
    MAP_GET_NEXT_ID = 12
    PROG_GET_FD_BY_ID = 13
    MAP_GET_FD_BY_ID = 14
    OBJ_GET_INFO_BY_FD = 15
    RAW_TRACEPOINT_OPEN = 17
    BTF_LOAD = 18
    MAP_LOOKUP_BATCH = 24
    MAP_UPDATE_BATCH = 26
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28
    LINK_UPDATE = 29
    LINK_GET_FD_BY_ID = 30
    ENABLE_STATS = 32
    ITER_CREATE = 33
    LINK_DETACH = 34


#: Every machine that uses the generic table (asm-generic/unistd.h) has 280.
_BPF: Final = 321 if os.uname().machine == "x86_64" else 280


def bpf(command: Command, attr: bytes | bytearray) -> int:
    """The result of bpf(2): a file descriptor or 0.

    Commands that answer inside ``attr`` (batches, info, test runs) want a ``bytearray``. Pointers
    inside ``attr`` must stay valid during the call: keep the buffers in variables. Raises OSError
    with the errno.
    """
    result: int = _syscall(_BPF, command, address(attr), len(attr))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def address(buffer: bytes | bytearray | None, offset: int = 0) -> int:
    """The memory address of a buffer's content plus ``offset``; 0 for None.

    The caller keeps the buffer alive and does not resize it while the address is in use.
    """
    if buffer is None:
        return 0
    where: int = (_bytes_address if isinstance(buffer, bytes) else _bytearray_address)(buffer)
    return where + offset


def object_info(fd: int, info: bytearray) -> None:
    """Fills ``info`` with the kernel's description of a program, map, link or BTF object."""
    attr = bytearray(struct.pack("<IIQ", fd, len(info), address(info)))
    bpf(Command.OBJ_GET_INFO_BY_FD, attr)
