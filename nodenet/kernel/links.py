"""Links: where a program is attached. Create, swap the program, pin, read back.

A pinned link outlives the process that made it; an unpinned one detaches when its last file
descriptor closes.
"""

from __future__ import annotations

import errno
import os
import struct
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, Self

from nodenet.errors import NotFound, NotSupported
from nodenet.kernel import pins
from nodenet.kernel.errors import KernelError
from nodenet.kernel.loader import Program
from nodenet.kernel.maps import Map
from nodenet.kernel.syscall import Command, address, bpf, object_info

#: One read of an iterator; the kernel fills at most 32 KiB at a time (bpf_seq_read).
_ITER_READ_BYTES: Final = 32 << 10
_ITER_NAME_BYTES: Final = 64


class LinkType(IntEnum):
    """``enum bpf_link_type``."""

    RAW_TRACEPOINT = 1
    TRACING = 2
    CGROUP = 3
    ITER = 4
    NETNS = 5
    XDP = 6
    PERF_EVENT = 7
    KPROBE_MULTI = 8
    STRUCT_OPS = 9
    NETFILTER = 10
    TCX = 11
    UPROBE_MULTI = 12
    NETKIT = 13
    SOCKMAP = 14


class LinkFailed(KernelError):
    """A link operation failed; ``errno`` says why."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what}: {os.strerror(number)}")
        self.errno = number


class LinkInfo(NamedTuple):
    """``struct bpf_link_info``; what does not belong to the type is None.

    ``netns_ino`` 0 and ``cgroup_id`` 0 mean that the target is gone: such a link never runs again.
    """

    type: int
    id: int
    prog_id: int
    attach_type: int | None = None
    cgroup_id: int | None = None
    netns_ino: int | None = None
    iter_target: str | None = None
    map_id: int | None = None

    @property
    def type_name(self) -> str:
        """As bpftool prints it, ``cgroup``; the number when it is not known."""
        try:
            return LinkType(self.type).name.lower()
        except ValueError:
            return str(self.type)


class Link:
    """An open link. A context manager; closing an unpinned one detaches."""

    __slots__ = ("_closed", "fd")

    def __init__(self, fd: int) -> None:
        """Takes the file descriptor over."""
        self.fd = fd
        self._closed = False

    def info(self) -> LinkInfo:
        """What it is and where it is attached, now."""
        return link_info(self.fd)

    def update(self, program_fd: int) -> None:
        """Swaps the program; no event in between runs neither or both. LinkFailed."""
        update_link(self.fd, program_fd)

    def detach(self) -> None:
        """Detaches although pins or other descriptors hold the link; it stays, dead."""
        try:
            bpf(Command.LINK_DETACH, struct.pack("<I", self.fd))
        except OSError as error:
            raise LinkFailed("detach link", error.errno or 0) from error

    def pin(self, path: Path) -> None:
        """Pins the link; FileExistsError when the path is taken."""
        pins.pin(self.fd, path)

    def close(self) -> None:
        """Closes the file descriptor; a second call does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_link(
    program: Program, target_fd: int, attach_type: int | None = None, *, flags: int = 0
) -> Link:
    """Attaches ``program`` to a cgroup or a network namespace.

    ``flags`` are BPF_F_* of linux/bpf.h, such as BPF_F_PREORDER 1<<6 and BPF_F_BEFORE 1<<3.
    Raises NotPermitted, NotSupported, LinkFailed.
    """
    kind = program.defn.attach_type if attach_type is None else attach_type
    return _create(program, struct.pack("<IIII", program.fd, target_fd, kind, flags))


def create_iter_link(program: Program, over: Map) -> Link:
    """Attaches an iterator program to the map it walks over; read it with `read_iter`."""
    info = struct.pack("<I", over.fd)
    head = struct.pack("<IIII", program.fd, 0, program.defn.attach_type, 0)
    return _create(program, head + struct.pack("<QI", address(info), len(info)))


def _create(program: Program, attr: bytes) -> Link:
    try:
        # the union is sized by its largest member; what a type does not use must be zero
        return Link(bpf(Command.LINK_CREATE, attr.ljust(64, b"\0")))
    except OSError as error:
        number = error.errno or 0
        what = f"attach {program.name}"
        if number == errno.EPERM:
            raise pins.refused(what, program.defn.hook) from error
        if number in (errno.EOPNOTSUPP, errno.EINVAL) and program.defn.attach == "none":
            raise NotSupported(program.defn.hook, "a hook that can be attached") from error
        raise LinkFailed(what, number) from error


def update_link(link_fd: int, new_prog_fd: int) -> None:
    """Swaps the program of a link atomically. LinkFailed, NotPermitted."""
    try:
        bpf(Command.LINK_UPDATE, struct.pack("<IIII", link_fd, new_prog_fd, 0, 0))
    except OSError as error:
        if error.errno == errno.EPERM:
            raise pins.refused("update link", "link update") from error
        raise LinkFailed("update link", error.errno or 0) from error


def open_link(path: Path) -> Link:
    """The link pinned at ``path``; NotFound when nothing is pinned there."""
    return Link(pins.get(path))


def link_by_id(ident: int) -> Link:
    """The link with the kernel's id; NotFound when there is none."""
    try:
        return Link(bpf(Command.LINK_GET_FD_BY_ID, struct.pack("<III", ident, 0, 0)))
    except FileNotFoundError as error:
        raise NotFound(f"no link with id {ident}") from error


def link_info(fd: int) -> LinkInfo:
    """Reads the info of an open link."""
    name = bytearray(_ITER_NAME_BYTES)
    info = bytearray(64)
    object_info(fd, info)
    kind, ident, prog_id = struct.unpack_from("<III", info)
    base = LinkInfo(kind, ident, prog_id)
    if kind == LinkType.CGROUP:
        cgroup, attach = struct.unpack_from("<QI", info, 16)
        return base._replace(cgroup_id=cgroup, attach_type=attach)
    if kind == LinkType.NETNS:
        inode, attach = struct.unpack_from("<II", info, 16)
        return base._replace(netns_ino=inode, attach_type=attach)
    if kind == LinkType.TRACING:
        return base._replace(attach_type=struct.unpack_from("<I", info, 16)[0])
    if kind == LinkType.ITER:
        # the name comes only when a buffer for it is passed in
        info = bytearray(64)
        struct.pack_into("<QI", info, 16, address(name), len(name))
        object_info(fd, info)
        target = name[: name.index(0)].decode()
        return base._replace(iter_target=target, map_id=struct.unpack_from("<I", info, 28)[0])
    return base


def read_iter(source: Path | Link) -> bytes:
    """One whole pass of an iterator: every record its program wrote, one after the other.

    ``source`` is a pinned iterator link or an open one. NotFound without such a pin.
    """
    if isinstance(source, Link):
        fd = bpf(Command.ITER_CREATE, struct.pack("<II", source.fd, 0))
    else:
        try:
            fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"no pinned iterator: {source}") from error
    chunks: list[bytes] = []
    try:
        while True:
            try:
                chunk = os.read(fd, _ITER_READ_BYTES)
            except BlockingIOError:
                continue  # a million objects without a record: the kernel wants to be asked again
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
    finally:
        os.close(fd)
