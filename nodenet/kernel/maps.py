"""Kernel maps: create, open, look up, update, and read whole maps in few system calls.

Whole maps are read with BPF_MAP_LOOKUP_BATCH into two flat buffers, all keys and all values one
after the other; `Map.items` cuts them up, and what wants speed takes the buffers (`Map.read_all`).
Keys and values are plain bytes; `nodenet.abi` has their layouts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Self

from nodenet import abi
from nodenet.kernel import pins
from nodenet.kernel.errors import KernelError
from nodenet.kernel.syscall import ENOTSUPP, Command, address, bpf

#: Bytes of one batch at most. Memory is only touched where the kernel writes, so a sparse map of
#: a large bound costs nothing; the limit is for maps of millions of entries.
_BATCH_BYTES: Final = 64 << 20

_PER_CPU: Final = frozenset({5, 6, 10, 21})
_ARRAYS: Final = frozenset({2, 6})
#: Types without enumeration: ring buffer, and storage that hangs on a socket.
_UNLISTABLE: Final = frozenset({abi.MapType.RINGBUF, abi.MapType.SK_STORAGE})
#: errno of a kernel whose map type lacks the batch commands.
_NO_BATCH: Final = frozenset({ENOTSUPP, errno.EOPNOTSUPP, errno.EINVAL})

_ELEM: Final = struct.Struct("<IIQQQ")
_BATCH: Final = struct.Struct("<QQQQIIQQ")
_BATCH_COUNT_OFFSET: Final = 32
_CREATE: Final = struct.Struct("<IIIIIII16sIIIIIIQ")


class Update(IntEnum):
    """Flags of `Map.update`."""

    ANY = 0
    NOEXIST = 1
    EXIST = 2


class MapFailed(KernelError):
    """An operation on a map failed; ``map``, ``operation`` and ``errno`` say which and why."""

    def __init__(self, name: str, operation: str, number: int) -> None:
        super().__init__(f"map {name}: {operation}: {os.strerror(number)}")
        self.map = name
        self.operation = operation
        self.errno = number


class MapFull(MapFailed):
    """The map has no room for another entry."""


class NotListable(KernelError):
    """This map type cannot be enumerated from user space."""


class MapInfo(NamedTuple):
    """``struct bpf_map_info``, the part that identifies a map and its shape."""

    type: int
    id: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int
    name: str


class Contents(NamedTuple):
    """A whole map: keys and values of ``entries`` entries, each one after the other, no gaps.

    A per-CPU map has `Map.value_stride` bytes a value: one slot a possible CPU, each rounded up to
    8 bytes.
    """

    keys: memoryview
    values: memoryview
    entries: int


@cache
def possible_cpus() -> int:
    """How many values a per-CPU map holds for each key."""
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
        return sum(
            int(last or first) - int(first) + 1
            for first, _, last in (part.partition("-") for part in file.read().strip().split(","))
        )


def map_info(fd: int) -> MapInfo:
    """What the kernel says about the map behind a file descriptor."""
    info = bytearray(88)
    bpf(Command.OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), address(info)))
    kind, ident, key, value, entries, flags, name = struct.unpack_from("<IIIIII16s", info)
    return MapInfo(kind, ident, key, value, entries, flags, name.rstrip(b"\0").decode())


def _storage_btf(value_size: int) -> bytes:
    """BTF that socket storage needs: 1 int, 2 u8, 3 u8[value_size], 4 a struct of that array."""
    kind_int, kind_array, kind_struct = 1 << 24, 3 << 24, 4 << 24
    strings = b"\0int\0u8\0v\0"
    types = (
        struct.pack("<IIII", 1, kind_int, 4, 1 << 24 | 32)  # signed, 32 bit
        + struct.pack("<IIII", 5, kind_int, 1, 8)
        + struct.pack("<IIIIII", 0, kind_array, 0, 2, 1, value_size)
        + struct.pack("<IIIIII", 8, kind_struct | 1, value_size, 8, 3, 0)
    )
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + types + strings


def _create(defn: abi.MapDef) -> int:
    key_size = defn.key.size if defn.key else 0
    value_size = defn.value.size if defn.value else 0
    btf_fd = key_type = value_type = 0
    if defn.type is abi.MapType.SK_STORAGE:
        blob = _storage_btf(value_size)
        btf_fd = bpf(
            Command.BTF_LOAD, struct.pack("<QQIII", address(blob), 0, len(blob), 0, 0) + bytes(4)
        )
        key_type, value_type = 1, 4
    name = defn.name.encode()[:15]
    shape = (defn.type, key_size, value_size, defn.max_entries, defn.flags, 0, 0, name)
    try:
        return bpf(
            Command.MAP_CREATE, _CREATE.pack(*shape, 0, btf_fd, key_type, value_type, 0, 0, 0)
        )
    finally:
        if btf_fd:
            os.close(btf_fd)


class Map:
    """An open map. A context manager; closing it leaves pins and the kernel's references alone."""

    __slots__ = ("_closed", "_info", "fd", "value_stride")

    def __init__(self, fd: int) -> None:
        """Takes the file descriptor over."""
        self.fd = fd
        self._closed = False
        self._info = map_info(fd)
        #: Bytes of one value as user space reads it.
        self.value_stride = self._info.value_size
        if self._info.type in _PER_CPU:
            self.value_stride = (self._info.value_size + 7 & ~7) * possible_cpus()

    @classmethod
    def create(cls, defn: abi.MapDef) -> Self:
        """A new, unpinned map. NotPermitted, NotSupported or MapFailed when the kernel refuses."""
        try:
            return cls(_create(defn))
        except OSError as error:
            if error.errno == errno.EPERM:
                what = f"create map {defn.name}"
                raise pins.refused(what, f"map type {defn.type.name.lower()}") from error
            raise MapFailed(defn.name, "create", error.errno or 0) from error

    @classmethod
    def open(cls, path: Path) -> Self:
        """The map pinned at ``path``; NotFound when nothing is."""
        return cls(pins.get(path))

    @property
    def name(self) -> str:
        """The kernel's name of the map, at most 15 characters."""
        return self._info.name

    @property
    def type(self) -> int:
        """``enum bpf_map_type``; compares equal to `nodenet.abi.MapType`."""
        return self._info.type

    @property
    def id(self) -> int:
        """The kernel's id, as `bpftool map` shows it."""
        return self._info.id

    @property
    def key_size(self) -> int:
        """Bytes of a key."""
        return self._info.key_size

    @property
    def value_size(self) -> int:
        """Bytes of a value; of one CPU's value for per-CPU types."""
        return self._info.value_size

    @property
    def max_entries(self) -> int:
        """The bound it was created with."""
        return self._info.max_entries

    @property
    def flags(self) -> int:
        """The flags it was created with."""
        return self._info.flags

    @property
    def info(self) -> MapInfo:
        """Everything above at once."""
        return self._info

    @property
    def per_cpu(self) -> bool:
        """Whether each key has a value for every CPU."""
        return self._info.type in _PER_CPU

    def __repr__(self) -> str:
        return f"<Map {self.name} id {self.id} fd {self.fd}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file descriptor; a second call does nothing."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)

    def pin(self, path: Path) -> None:
        """Pins the map; FileExistsError when the path is taken."""
        pins.pin(self.fd, path)

    # one entry

    def lookup(self, key: bytes) -> bytes | None:
        """The value of ``key``, or None. Per-CPU: every CPU's value, each rounded up to 8 bytes."""
        self._check("key", key, self._info.key_size)
        value = bytearray(self.value_stride)
        attr = _ELEM.pack(self.fd, 0, address(key), address(value), 0)
        try:
            bpf(Command.MAP_LOOKUP_ELEM, attr)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("lookup", error) from error
        return bytes(value)

    def lookup_percpu(self, key: bytes) -> list[bytes] | None:
        """Each CPU's value of ``key``, or None."""
        value = self.lookup(key)
        return None if value is None else self._cut(value)

    def update(self, key: bytes, value: bytes, flags: int = Update.ANY) -> None:
        """Writes an entry.

        FileExistsError with `Update.NOEXIST`, KeyError with `Update.EXIST`, MapFull when the bound
        is reached. A per-CPU value is every CPU's, each rounded up to 8 bytes.
        """
        self._check("key", key, self._info.key_size)
        self._check("value", value, self.value_stride)
        try:
            bpf(
                Command.MAP_UPDATE_ELEM,
                _ELEM.pack(self.fd, 0, address(key), address(value), flags),
            )
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            raise KeyError(key) from error
        except OSError as error:
            raise self._failed("update", error) from error

    def delete(self, key: bytes) -> bool:
        """Removes an entry; False when there was none."""
        self._check("key", key, self._info.key_size)
        try:
            bpf(Command.MAP_DELETE_ELEM, _ELEM.pack(self.fd, 0, address(key), 0, 0))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._failed("delete", error) from error
        return True

    # the whole map

    def read_all(self, *, batch_entries: int | None = None) -> Contents:
        """All keys and values in two flat buffers, by as few system calls as possible.

        On a map that changes meanwhile an entry may be missing or appear twice, as with any way
        of reading it. NotListable for ring buffers and socket storage.
        """
        if self._info.type in _UNLISTABLE:
            raise NotListable(
                f"map {self.name}: this type cannot be listed; socket storage is read through its "
                "iterator, a ring buffer by its reader"
            )
        stride = self._info.key_size + self.value_stride
        entries = batch_entries or min(self._info.max_entries, max(1, _BATCH_BYTES // stride))
        try:
            return self._read_batches(entries)
        except OSError as error:
            if error.errno in _NO_BATCH:
                return self._read_singly()
            raise self._failed("read", error) from error

    def _read_batches(self, entries: int) -> Contents:
        key_size, stride = self._info.key_size, self.value_stride
        chunks: list[tuple[bytearray, bytearray, int]] = []
        # the kernel's position: a bucket number, or a key for types without buckets
        here, there = bytearray(max(key_size, 8)), bytearray(max(key_size, 8))
        started = more = False
        while True:
            keys, values = bytearray(entries * key_size), bytearray(entries * stride)
            attr = bytearray(
                _BATCH.pack(
                    address(here) if started else 0, address(there), address(keys),
                    address(values), entries, self.fd, 0, 0,
                )
            )  # fmt: skip
            number = 0
            try:
                bpf(Command.MAP_LOOKUP_BATCH, attr)
            except OSError as error:
                number = error.errno or 0
                if number == errno.ENOSPC:
                    # one bucket holds more entries than the batch has room for
                    entries *= 2
                    continue
                if number not in (errno.ENOENT, errno.EINTR):
                    raise
            (count,) = struct.unpack_from("<I", attr, _BATCH_COUNT_OFFSET)
            if count:
                chunks.append((keys, values, count))
                here, there, started = there, here, True
            more = number != errno.ENOENT
            if not more:
                return _joined(chunks, key_size, stride)

    def _read_singly(self) -> Contents:
        keys, values, count = bytearray(), bytearray(), 0
        for key in self._next_keys():
            value = self.lookup(key)
            if value is not None:  # else deleted meanwhile
                keys += key
                values += value
                count += 1
        return Contents(memoryview(keys), memoryview(values), count)

    def _next_keys(self) -> Iterator[bytes]:
        key: bytes | None = None
        # a key deleted while we stand on it makes the kernel start again; the bound ends that
        for _ in range(2 * self._info.max_entries + 1):
            following = bytearray(self._info.key_size)
            attr = _ELEM.pack(self.fd, 0, address(key), address(following), 0)
            try:
                bpf(Command.MAP_GET_NEXT_KEY, attr)
            except FileNotFoundError:
                return
            except OSError as error:
                raise self._failed("list", error) from error
            key = bytes(following)
            yield key

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry, as `lookup` gives values."""
        contents = self.read_all()
        key_size, stride = self._info.key_size, self.value_stride
        keys, values = bytes(contents.keys), bytes(contents.values)
        for i in range(contents.entries):
            yield keys[i * key_size : (i + 1) * key_size], values[i * stride : (i + 1) * stride]

    def items_percpu(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Every entry with the list of its values, one a possible CPU."""
        for key, value in self.items():
            yield key, self._cut(value)

    def count(self) -> int:
        """How many entries there are; an array's are all there always."""
        if self._info.type in _ARRAYS:
            return self._info.max_entries
        return self.read_all().entries

    def update_batch(self, keys: bytes, values: bytes) -> None:
        """Writes many entries: keys and values each one after the other, as `read_all` gives."""
        count = self._count_of(keys)
        self._check("values", values, count * self.value_stride)
        if self._batch(Command.MAP_UPDATE_BATCH, keys, values, count):
            return
        size, stride = self._info.key_size, self.value_stride
        for i in range(count):
            self.update(keys[i * size : (i + 1) * size], values[i * stride : (i + 1) * stride])

    def delete_batch(self, keys: bytes) -> None:
        """Removes many entries; those that are gone already are no error."""
        size = self._info.key_size
        count = self._count_of(keys)
        if not self._batch(Command.MAP_DELETE_BATCH, keys, None, count):
            for i in range(count):
                self.delete(keys[i * size : (i + 1) * size])

    def clear(self) -> None:
        """Removes every entry; an array's values become zero."""
        contents = self.read_all()
        if self._info.type in _ARRAYS:
            self.update_batch(bytes(contents.keys), bytes(len(contents.values)))
        else:
            self.delete_batch(bytes(contents.keys))

    def _batch(self, command: Command, keys: bytes, values: bytes | None, count: int) -> bool:
        """Whether the kernel did it; False when the type has no such batch command."""
        done, size = 0, self._info.key_size
        while done < count:
            value_address = address(values, done * self.value_stride) if values is not None else 0
            attr = bytearray(
                _BATCH.pack(
                    0, 0, address(keys, done * size), value_address, count - done, self.fd, 0, 0
                )
            )
            try:
                bpf(command, attr)
                return True
            except OSError as error:
                (now,) = struct.unpack_from("<I", attr, _BATCH_COUNT_OFFSET)
                if command is Command.MAP_DELETE_BATCH and error.errno == errno.ENOENT:
                    done += now + 1  # the kernel stops at a key that is not there
                    continue
                if error.errno in _NO_BATCH and not done:
                    return False
                raise self._failed("batch", error) from error
        return True

    def _count_of(self, keys: bytes) -> int:
        count, rest = divmod(len(keys), self._info.key_size)
        if rest:
            raise ValueError(f"map {self.name}: {len(keys)} bytes are not keys of {self.key_size}")
        return count

    def _cut(self, value: bytes) -> list[bytes]:
        size = self._info.value_size
        step = size + 7 & ~7
        return [value[i : i + size] for i in range(0, len(value), step)]

    def _check(self, what: str, given: bytes, wanted: int) -> None:
        # a short buffer would let the kernel read or write beyond it
        if len(given) != wanted:
            raise ValueError(f"map {self.name}: {what} has {len(given)} bytes, not {wanted}")

    def _failed(self, operation: str, error: OSError) -> KernelError:
        number = error.errno or 0
        kind = MapFull if number in (errno.E2BIG, errno.ENOSPC) else MapFailed
        return kind(self.name, operation, number)


def _joined(chunks: list[tuple[bytearray, bytearray, int]], key_size: int, stride: int) -> Contents:
    if len(chunks) == 1:
        keys, values, count = chunks[0]
        return Contents(
            memoryview(keys)[: count * key_size], memoryview(values)[: count * stride], count
        )
    all_keys = b"".join(memoryview(k)[: n * key_size] for k, _, n in chunks)
    all_values = b"".join(memoryview(v)[: n * stride] for _, v, n in chunks)
    return Contents(memoryview(all_keys), memoryview(all_values), sum(n for _, _, n in chunks))


@contextlib.contextmanager
def closing_all(maps: dict[str, Map]) -> Iterator[dict[str, Map]]:
    """Closes every map at the end."""
    try:
        yield maps
    finally:
        for one in maps.values():
            one.close()
