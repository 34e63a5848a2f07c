"""Programs in the kernel: find by id, describe as bpftool does, run on a test input, time."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from nodenet.errors import NotFound
from nodenet.kernel import pins
from nodenet.kernel.errors import KernelError
from nodenet.kernel.syscall import Command, address, bpf, object_info

_INFO_BYTES: Final = 232
_MAP_IDS: Final = 64
#: A packet as the test-run of a traffic-control program takes it: head and data, in bytes.
_TEST_OUTPUT_BYTES: Final = 1 << 16


class RunFailed(KernelError):
    """A test run failed; ``errno`` says why."""

    def __init__(self, number: int) -> None:
        super().__init__(f"run program: {os.strerror(number)}")
        self.errno = number


class ProgramInfo(NamedTuple):
    """``struct bpf_prog_info`` with bpftool's names; sizes in bytes, times in ns.

    ``loaded_at`` is the time of day in seconds. ``run_time_ns`` and ``run_cnt`` only grow while
    run statistics are on (`enable_run_stats`).
    """

    id: int
    type: int
    name: str
    tag: str
    gpl_compatible: bool
    run_time_ns: int
    run_cnt: int
    recursion_misses: int
    loaded_at: float
    uid: int
    bytes_xlated: int
    jited: bool
    bytes_jited: int
    bytes_memlock: int
    map_ids: tuple[int, ...]
    btf_id: int
    verified_insns: int


def program_by_id(ident: int) -> int:
    """A file descriptor of the program; the caller closes it. NotFound, NotPermitted."""
    return _by_id(Command.PROG_GET_FD_BY_ID, "program", ident)


def map_by_id(ident: int) -> int:
    """A file descriptor of the map; the caller closes it. NotFound, NotPermitted."""
    return _by_id(Command.MAP_GET_FD_BY_ID, "map", ident)


def _by_id(command: Command, what: str, ident: int) -> int:
    try:
        return bpf(command, struct.pack("<III", ident, 0, 0))
    except FileNotFoundError as error:
        raise NotFound(f"no {what} with id {ident}") from error
    except OSError as error:
        if error.errno == errno.EPERM:
            raise pins.refused(f"open {what} {ident}", "bpf(2)") from error
        raise KernelError(f"open {what} {ident}: {error.strerror}") from error


def program_info(fd: int) -> ProgramInfo:
    """Describes an open program."""
    ids = bytearray(4 * _MAP_IDS)
    info = bytearray(_INFO_BYTES)
    struct.pack_into("<I", info, 52, _MAP_IDS)
    struct.pack_into("<Q", info, 56, address(ids))
    object_info(fd, info)
    kind, ident, tag, jited, xlated = struct.unpack_from("<II8sII", info)
    load_ns, uid, maps = struct.unpack_from("<QII", info, 40)
    (name,) = struct.unpack_from("<16s", info, 64)
    (gpl,) = struct.unpack_from("<I", info, 84)
    (btf_id,) = struct.unpack_from("<I", info, 128)
    run_ns, runs, misses, verified = struct.unpack_from("<QQQI", info, 192)
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return ProgramInfo(
        id=ident,
        type=kind,
        name=name.rstrip(b"\0").decode(errors="replace"),
        tag=tag.hex(),
        gpl_compatible=bool(gpl & 1),
        run_time_ns=run_ns,
        run_cnt=runs,
        recursion_misses=misses,
        loaded_at=boot + load_ns / 1e9,
        uid=uid,
        bytes_xlated=xlated,
        jited=jited > 0,
        bytes_jited=jited,
        bytes_memlock=bytes_memlock(fd),
        map_ids=struct.unpack_from(f"<{min(maps, _MAP_IDS)}I", ids),
        btf_id=btf_id,
        verified_insns=verified,
    )


def bytes_memlock(fd: int) -> int:
    """Memory of an open program or map as the kernel accounts it; 0 when it does not say."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("memlock:")), 0)


@contextlib.contextmanager
def enable_run_stats() -> Iterator[None]:
    """While inside, the kernel times every program (about 20 ns a run); for all users of it."""
    try:
        fd = bpf(Command.ENABLE_STATS, struct.pack("<I", 0))
    except OSError as error:
        if error.errno == errno.EPERM:
            raise pins.refused("enable run statistics", "BPF_ENABLE_STATS") from error
        raise KernelError(f"enable run statistics: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(fd)


def test_run(fd: int, data: bytes, *, repeat: int = 1) -> tuple[int, bytes]:
    """Runs a program on ``data`` as if it had been a packet: (return value, data afterwards).

    RunFailed: EINVAL when ``data`` is too short (14 bytes of head) or the type cannot be run.
    """
    out = bytearray(_TEST_OUTPUT_BYTES)
    while True:
        attr = bytearray(
            struct.pack(
                "<IIIIQQIIIIQQIIII",
                fd, 0, len(data), len(out), address(data), address(out), repeat, 0, 0, 0, 0, 0,
                0, 0, 0, 0,
            )
        )  # fmt: skip
        try:
            bpf(Command.PROG_TEST_RUN, attr)
        except InterruptedError:
            continue  # a signal was pending
        except OSError as error:
            if error.errno == errno.EPERM:
                raise pins.refused("run program", "BPF_PROG_TEST_RUN") from error
            raise RunFailed(error.errno or 0) from error
        retval, _, size = struct.unpack_from("<III", attr, 4)
        return retval, bytes(out[:size])


# not a test, whatever its name looks like to a collector
test_run.__test__ = False  # type: ignore[attr-defined]  # an attribute of pytest's
