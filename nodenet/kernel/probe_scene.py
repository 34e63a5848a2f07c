"""The place where probes try things: a cgroup, a namespace, small programs and maps of their own.

All of it is made on first use and gone with the scene; programs and links live by descriptors
only, so even a killed probe leaves at most one empty cgroup, which the next scene removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from nodenet import abi
from nodenet.kernel import cgroups, libc
from nodenet.kernel.maps import Map
from nodenet.kernel.netns import NetNs
from nodenet.kernel.syscall import Command, address, bpf

#: The cgroups of scenes, below the root of the hierarchy, with the process id behind it.
CGROUP_PREFIX: Final = "nodenet-probe-"

_LICENSE: Final = b"GPL\0"
_LOAD: Final = struct.Struct("<IIQQIIQII16sIIIIQIIQII")
#: The verifier gives up when a signal is pending.
_LOAD_ATTEMPTS: Final = 5


def insn(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """One instruction as linux/bpf.h lays it out."""
    return struct.pack("<BBhi", code, src << 4 | dst, off, imm)


def move(register: int, value: int) -> bytes:
    """``rN = value``."""
    return insn(0xB7, register, imm=value)


def call(helper: int) -> bytes:
    """A call of a helper by its number."""
    return insn(0x85, imm=helper)


def load_map(register: int, map_fd: int) -> bytes:
    """``rN = map``: the two-slot load that the kernel resolves from a descriptor."""
    return insn(0x18, register, 1, imm=map_fd) + insn(0)


EXIT: Final = insn(0x95)


class Scene:
    """Resources for one run of probes. A context manager."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._cgroup_fd: int | None = None
        self._namespace: NetNs | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._cgroup_fd = self._namespace = None

    def cgroup_fd(self) -> int:
        """An empty cgroup below the root: a link there sees no socket of anybody."""
        if self._cgroup_fd is None:
            root = cgroups.cgroup2_mount()
            _remove_strays(root)
            own = cgroups.Cgroup.create(root / f"{CGROUP_PREFIX}{os.getpid()}", root)
            self._stack.callback(own.remove)
            self._cgroup_fd = os.open(own.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, self._cgroup_fd)
        return self._cgroup_fd

    def namespace(self) -> NetNs:
        """A network namespace without a name; it ends with the scene."""
        if self._namespace is None:
            with NetNs.current() as here, here.entered():
                libc.unshare(libc.CLONE_NEWNET)
                self._namespace = NetNs.current()
            self._stack.callback(self._namespace.close)
        return self._namespace

    @contextlib.contextmanager
    def program(
        self, kind: int, attach_type: int, code: Sequence[bytes], *, btf_id: int = 0
    ) -> Iterator[int]:
        """A loaded program's descriptor; OSError with the errno of BPF_PROG_LOAD."""
        body = b"".join(code)
        attr = _LOAD.pack(
            kind, len(body) // 8, address(body), address(_LICENSE), 0, 0, 0, 0, 0,
            b"nn_probe", 0, attach_type, 0, 0, 0, 0, 0, 0, 0, btf_id,
        )  # fmt: skip
        fd = _retried(attr)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def link(
        self, program: int, target: int, attach_type: int, extra: bytes = b""
    ) -> Iterator[int]:
        """A link's descriptor; OSError with the errno of BPF_LINK_CREATE."""
        head = struct.pack("<IIII", program, target, attach_type, 0)
        fd = bpf(Command.LINK_CREATE, (head + extra).ljust(64, b"\0"))
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def map(self, name: str, *, entries: int | None = None) -> Iterator[Map]:
        """A map as `nodenet.abi.MAPS` declares it, unpinned, with fewer entries where possible."""
        defn = abi.MAPS[name]
        if entries is not None:
            defn = defn._replace(max_entries=entries)
        with Map.create(defn) as made:
            yield made


def _retried(attr: bytes) -> int:
    for _ in range(_LOAD_ATTEMPTS - 1):
        try:
            return bpf(Command.PROG_LOAD, attr)
        except BlockingIOError:
            continue
    return bpf(Command.PROG_LOAD, attr)


def _remove_strays(root: Path) -> None:
    """Removes the cgroups of scenes whose process was killed."""
    for path in root.glob(f"{CGROUP_PREFIX}*"):
        pid = path.name.removeprefix(CGROUP_PREFIX)
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                path.rmdir()


def error_number(error: BaseException) -> int | None:
    """The errno behind an exception of this package, or behind what caused it."""
    below: BaseException | None = error
    while below is not None:
        number = getattr(below, "errno", None)
        if isinstance(number, int) and number:
            return number
        below = below.__cause__
    return None


def error_name(number: int | None) -> str | None:
    """``EPERM`` for 1; the number as text when it has no name."""
    return None if number is None else errno.errorcode.get(number, str(number))
