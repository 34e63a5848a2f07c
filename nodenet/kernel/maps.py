"""Kernel maps: create, open, look up, update, and read whole maps.

Keys and values are plain bytes; `nodenet.abi` has their layouts. `Map.items` cuts a whole map into
entries, and what wants speed takes the flat buffers behind it (`Map.read_all`).
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, Self

from nodenet import abi
from nodenet.errors import NodenetError
from nodenet.kernel import map_batch, pins
from nodenet.kernel.errors import KernelError
from nodenet.kernel.map_batch import Contents
from nodenet.kernel.map_shape import Shape, create_map, map_info
from nodenet.kernel.syscall import Command, address, bpf

_ARRAYS: Final = frozenset({abi.MapType.ARRAY, abi.MapType.PERCPU_ARRAY})
_UNLISTABLE: Final = frozenset({abi.MapType.RINGBUF, abi.MapType.SK_STORAGE})
_ELEM: Final = struct.Struct("<IIQQQ")


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

    def __init__(self, name: str) -> None:
        super().__init__(
            f"map {name}: cannot be listed: socket storage and ring buffers have no keys to walk; "
            "read socket storage through its iterator, a ring buffer with its reader"
        )


class Map:
    """An open map. A context manager; closing it leaves pins and the kernel's references alone."""

    __slots__ = ("_closed", "_info", "fd", "value_stride")

    def __init__(self, fd: int) -> None:
        """Takes the file descriptor over."""
        self.fd = fd
        self._closed = False
        self._info = map_info(fd)
        #: Bytes of one value as user space reads it; per-CPU: of all CPUs' values.
        self.value_stride = self._info.shape.value_stride

    @classmethod
    def create(cls, defn: abi.MapDef) -> Self:
        """A new, unpinned map. NotPermitted, NotSupported or MapFailed when the kernel refuses."""
        try:
            return cls(create_map(defn))
        except OSError as error:
            raise _failed(defn.name, "create", error) from error

    @classmethod
    def open(cls, path: Path) -> Self:
        """The map pinned at ``path``; NotFound when nothing is."""
        return cls(pins.get(path))

    @property
    def name(self) -> str:
        """The kernel's name of the map, at most 15 characters."""
        return self._info.name

    @property
    def id(self) -> int:
        """The kernel's id, as `bpftool map` shows it."""
        return self._info.id

    @property
    def shape(self) -> Shape:
        """Type, sizes, bound and flags at once."""
        return self._info.shape

    @property
    def type(self) -> int:
        """``enum bpf_map_type``; compares equal to `nodenet.abi.MapType`."""
        return self._info.shape.type

    @property
    def key_size(self) -> int:
        """Bytes of a key."""
        return self._info.shape.key_size

    @property
    def value_size(self) -> int:
        """Bytes of a value; of one CPU's value for per-CPU types."""
        return self._info.shape.value_size

    @property
    def max_entries(self) -> int:
        """The bound it was created with."""
        return self._info.shape.max_entries

    @property
    def flags(self) -> int:
        """The flags it was created with."""
        return self._info.shape.flags

    @property
    def per_cpu(self) -> bool:
        """Whether each key has a value for every CPU."""
        return self._info.shape.per_cpu

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
        """The value of ``key``, or None. Per-CPU: every CPU's value, each rounded up to 8 bytes.

        Socket storage takes the socket's file descriptor as key.
        """
        self._check("key", key, self.key_size)
        value = bytearray(self.value_stride)
        try:
            bpf(
                Command.MAP_LOOKUP_ELEM,
                _ELEM.pack(self.fd, 0, address(key), address(value), 0),
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(self.name, "lookup", error) from error
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
        self._check("key", key, self.key_size)
        self._check("value", value, self.value_stride)
        attr = _ELEM.pack(self.fd, 0, address(key), address(value), flags)
        for attempt in range(1, map_batch.BUSY_ATTEMPTS + 1):
            try:
                bpf(Command.MAP_UPDATE_ELEM, attr)
                return
            except FileExistsError:
                raise
            except FileNotFoundError as error:
                raise KeyError(key) from error
            except OSError as error:
                if error.errno not in map_batch.BUSY or attempt == map_batch.BUSY_ATTEMPTS:
                    raise _failed(self.name, "update", error) from error
                time.sleep(map_batch.BUSY_PAUSE_SECONDS)

    def delete(self, key: bytes) -> bool:
        """Removes an entry; False when there was none."""
        self._check("key", key, self.key_size)
        try:
            bpf(Command.MAP_DELETE_ELEM, _ELEM.pack(self.fd, 0, address(key), 0, 0))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed(self.name, "delete", error) from error
        return True

    # the whole map

    def read_all(self, *, batch_entries: int | None = None) -> Contents:
        """All keys and values in two flat buffers, by as few system calls as possible.

        On a map that changes meanwhile an entry may be missing or appear twice, as with any way
        of reading it. NotListable for ring buffers and socket storage.
        """
        if self.type in _UNLISTABLE:
            raise NotListable(self.name)
        stride = self.key_size + self.value_stride
        most = max(1, map_batch.BATCH_BYTES // stride)
        entries = batch_entries or min(self.max_entries, most)
        try:
            return map_batch.read_batches(self.fd, self.key_size, self.value_stride, entries)
        except OSError as error:
            if error.errno in map_batch.NO_BATCH:
                return self._read_singly()
            raise _failed(self.name, "read", error) from error

    def _read_singly(self) -> Contents:
        keys, values, entries = bytearray(), bytearray(), 0
        for key in self._next_keys():
            value = self.lookup(key)
            if value is not None:  # else deleted meanwhile
                keys += key
                values += value
                entries += 1
        return Contents(memoryview(keys), memoryview(values), entries)

    def _next_keys(self) -> Iterator[bytes]:
        key: bytes | None = None
        # a key deleted while we stand on it makes the kernel start again; the bound ends that
        for _ in range(2 * self.max_entries + 1):
            following = bytearray(self.key_size)
            attr = _ELEM.pack(self.fd, 0, address(key), address(following), 0)
            try:
                bpf(Command.MAP_GET_NEXT_KEY, attr)
            except FileNotFoundError:
                return
            except OSError as error:
                raise _failed(self.name, "list", error) from error
            key = bytes(following)
            yield key

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry, with values as `lookup` gives them."""
        contents = self.read_all()
        size, stride = self.key_size, self.value_stride
        keys, values = bytes(contents.keys), bytes(contents.values)
        for i in range(contents.entries):
            yield keys[i * size : (i + 1) * size], values[i * stride : (i + 1) * stride]

    def items_percpu(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Every entry with the list of its values, one a possible CPU."""
        for key, value in self.items():
            yield key, self._cut(value)

    def count(self) -> int:
        """How many entries there are; an array's are all there always."""
        return self.max_entries if self.type in _ARRAYS else self.read_all().entries

    def update_batch(self, keys: bytes, values: bytes) -> None:
        """Writes many entries: keys and values each one after the other, as `read_all` gives."""
        entries = self._entries(keys)
        self._check("values", values, entries * self.value_stride)
        try:
            if not entries or map_batch.write_batch(self.fd, keys, values, entries):
                return
        except OSError as error:
            raise _failed(self.name, "update", error) from error
        size, stride = self.key_size, self.value_stride
        for i in range(entries):
            self.update(keys[i * size : (i + 1) * size], values[i * stride : (i + 1) * stride])

    def delete_batch(self, keys: bytes) -> None:
        """Removes many entries; those that are gone already are no error."""
        entries = self._entries(keys)
        try:
            if not entries or map_batch.delete_batch(self.fd, keys, entries):
                return
        except OSError as error:
            raise _failed(self.name, "delete", error) from error
        for i in range(entries):
            self.delete(keys[i * self.key_size : (i + 1) * self.key_size])

    def clear(self) -> None:
        """Removes every entry; an array's values become zero."""
        contents = self.read_all()
        if self.type in _ARRAYS:
            self.update_batch(bytes(contents.keys), bytes(len(contents.values)))
        else:
            self.delete_batch(bytes(contents.keys))

    def _entries(self, keys: bytes) -> int:
        entries, rest = divmod(len(keys), self.key_size)
        if rest:
            raise ValueError(f"map {self.name}: {len(keys)} bytes are no keys of {self.key_size}")
        return entries

    def _cut(self, value: bytes) -> list[bytes]:
        size = self.value_size
        if not self.per_cpu:
            return [value]
        return [value[i : i + size] for i in range(0, len(value), size + 7 & ~7)]

    def _check(self, what: str, given: bytes, wanted: int) -> None:
        # a short buffer would let the kernel read or write beyond it
        if len(given) != wanted:
            raise ValueError(f"map {self.name}: {what} has {len(given)} bytes, not {wanted}")


def _failed(name: str, operation: str, error: OSError) -> NodenetError:
    number = error.errno or 0
    if number == errno.EPERM:
        return pins.refused(f"{operation} map {name}", f"map {operation}")
    kind = MapFull if number in (errno.E2BIG, errno.ENOSPC) else MapFailed
    return kind(name, operation, number)
