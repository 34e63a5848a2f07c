"""The bpf(2) system call through ctypes: command numbers, attribute buffers, errno to OSError.

Attribute layouts are written where they are used; the numbers are those of linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

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
_BPF: Final = ctypes.c_long(321 if os.uname().machine == "x86_64" else 280)


def bpf(command: Command, attr: bytes | bytearray) -> int:
    """The result of bpf(2): a file descriptor or 0.

    A ``bytearray`` is passed as it is, so the kernel's answers appear in it; ``bytes`` are copied.
    Pointers inside ``attr`` must stay valid during the call: keep the buffers in variables.
    Raises OSError with the errno.
    """
    size = len(attr)
    buffer: ctypes.Array[ctypes.c_char]
    if isinstance(attr, bytearray):
        buffer = (ctypes.c_char * size).from_buffer(attr)
    else:
        buffer = ctypes.create_string_buffer(attr, size)
    result: int = _syscall(_BPF, ctypes.c_long(command), buffer, ctypes.c_ulong(size))
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
    if isinstance(buffer, bytes):
        # c_char_p of a bytes object points at its content, without a copy
        return (ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0) + offset
    return ctypes.addressof((ctypes.c_char * 0).from_buffer(buffer)) + offset
