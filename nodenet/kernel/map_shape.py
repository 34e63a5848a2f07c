"""What a map is: type, sizes, bound, flags. Compared between C, `nodenet.abi`, and the kernel."""

from __future__ import annotations

import os
import struct
from functools import cache
from typing import Final, NamedTuple

from nodenet import abi
from nodenet.kernel.syscall import Command, address, bpf, object_info

#: Per-CPU hash, array, LRU hash and cgroup storage.
_PER_CPU: Final = frozenset({5, 6, 10, 21})
_INFO_BYTES: Final = 88
_CREATE: Final = struct.Struct("<IIIIIII16sIIIIIIQ")


class Shape(NamedTuple):
    """Everything two maps must agree on to be used by the same programs; sizes in bytes."""

    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int

    @classmethod
    def of(cls, defn: abi.MapDef) -> Shape:
        """The shape a definition asks for."""
        key, value = defn.key, defn.value
        return cls(
            int(defn.type),
            key.size if key else 0,
            value.size if value else 0,
            defn.max_entries,
            defn.flags,
        )

    @property
    def per_cpu(self) -> bool:
        """Whether each key has a value for every CPU."""
        return self.type in _PER_CPU

    @property
    def value_stride(self) -> int:
        """Bytes of one value as user space reads it: per-CPU slots are rounded up to 8."""
        if self.per_cpu:
            return (self.value_size + 7 & ~7) * possible_cpus()
        return self.value_size

    def __str__(self) -> str:
        known = {t.value: t.name.lower() for t in abi.MapType}
        return (
            f"type {known.get(self.type, self.type)}, key {self.key_size}, "
            f"value {self.value_size}, max_entries {self.max_entries}, flags {self.flags:#x}"
        )


class MapInfo(NamedTuple):
    """``struct bpf_map_info``, the part that does not change."""

    id: int
    name: str
    shape: Shape


@cache
def possible_cpus() -> int:
    """How many values a per-CPU map holds for each key."""
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
        return count_cpus(file.read())


def count_cpus(ranges: str) -> int:
    """How many CPUs a list such as ``0-3,8`` names."""
    bounds = (part.partition("-") for part in ranges.strip().split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in bounds)


def map_info(fd: int) -> MapInfo:
    """What the kernel says about the map behind a file descriptor."""
    info = bytearray(_INFO_BYTES)
    object_info(fd, info)
    kind, ident, key, value, entries, flags, name = struct.unpack_from("<IIIIII16s", info)
    return MapInfo(ident, name.rstrip(b"\0").decode(), Shape(kind, key, value, entries, flags))


def create_map(defn: abi.MapDef) -> int:
    """BPF_MAP_CREATE: a file descriptor. OSError as the kernel gives it."""
    shape = Shape.of(defn)
    btf_fd = key_type = value_type = 0
    if defn.type is abi.MapType.SK_STORAGE:
        # the kernel takes no socket storage without types for key and value
        blob = storage_btf(shape.value_size)
        btf_fd = bpf(Command.BTF_LOAD, struct.pack("<QQIIII", address(blob), 0, len(blob), 0, 0, 0))
        key_type, value_type = 1, 4
    name = defn.name.encode()[:15]
    types = (btf_fd, key_type, value_type)
    try:
        return bpf(Command.MAP_CREATE, _CREATE.pack(*shape, 0, 0, name, 0, *types, 0, 0, 0))
    finally:
        if btf_fd:
            os.close(btf_fd)


def storage_btf(value_size: int) -> bytes:
    """BTF with the types 1 int, 2 u8, 3 u8[value_size], 4 struct { u8 v[value_size]; }."""
    kind_int, kind_array, kind_struct = 1 << 24, 3 << 24, 4 << 24
    strings = b"\0int\0u8\0v\0"
    types = (
        struct.pack("<IIII", 1, kind_int, 4, 1 << 24 | 32)  # signed, 32 bits
        + struct.pack("<IIII", 5, kind_int, 1, 8)
        + struct.pack("<IIIIII", 0, kind_array, 0, 2, 1, value_size)
        + struct.pack("<IIIIII", 0, kind_struct | 1, value_size, 8, 3, 0)
    )
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + types + strings
