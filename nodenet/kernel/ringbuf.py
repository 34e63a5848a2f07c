"""Reads a ring buffer map through shared memory: no system call a record, no copy by the kernel.

Layout (kernel/bpf/ringbuf.c): page 0 holds the consumer position, page 1 the producer position,
then the data, mapped twice in a row so that a record that wraps is contiguous. A record is
u32 length with two flags on top, u32 that is the kernel's own, then the data, rounded up to 8.

Positions are 64-bit counters of bytes, read and written with single loads and stores, as CPython
does for a memoryview of that format. x86-64 keeps their order. arm64 may reorder a record's data
before its length; the record is taken only after the length of its whole batch was read, and the
system call that leads to a batch (epoll) orders the two; what remains is a reader that spins.

The buffer counts nothing: what did not fit is counted by the program (``Stat.EVENTS_LOST``).
One process reads a ring buffer; a second one would take records from the first.
"""

from __future__ import annotations

import errno
import mmap
from typing import Final, Self

from nodenet import abi
from nodenet.kernel.errors import KernelError
from nodenet.kernel.maps import Map

_BUSY: Final = 1 << 31
_DISCARDED: Final = 1 << 30
_LENGTH: Final = _DISCARDED - 1
_HEADER_BYTES: Final = 8


class NotRingBuffer(KernelError):
    """The map is of another type, or cannot be mapped."""


class RingBuffer:
    """The one reader of a ring buffer map. A context manager."""

    def __init__(self, map_: Map) -> None:
        """Maps the buffer; ``map_`` stays the caller's. NotRingBuffer."""
        if map_.type != abi.MapType.RINGBUF:
            raise NotRingBuffer(f"map {map_.name}: type {map_.type} is no ring buffer")
        self._map = map_
        self._size = map_.max_entries
        page = mmap.PAGESIZE
        try:
            self._consumer_page = mmap.mmap(map_.fd, page, mmap.MAP_SHARED)
            # the kernel refuses a writable mapping of what it alone writes
            self._rest = mmap.mmap(
                map_.fd, page + 2 * self._size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
            )
        except OSError as error:
            hint = "run as root" if error.errno == errno.EPERM else None
            raise NotRingBuffer(f"map {map_.name}: {error.strerror}", hint=hint) from error
        self._consumer = memoryview(self._consumer_page)[:8].cast("Q")
        self._producer = memoryview(self._rest)[:8].cast("Q")
        self._data = memoryview(self._rest)[page:]
        self._headers = self._data.cast("I")

    def fileno(self) -> int:
        """For epoll: readable while there are records, level triggered."""
        return self._map.fd

    def drain(self, max_records: int = 65536) -> list[bytes]:
        """The records that are there, oldest first, at most ``max_records``; they leave the buffer.

        Stops at a record that is still being written.
        """
        records: list[bytes] = []
        position, end = self._consumer[0], self._producer[0]
        mask, headers, data = self._size - 1, self._headers, self._data
        take = records.append
        while position < end and len(records) < max_records:
            start = position & mask
            header = headers[start >> 2]
            if header & _BUSY:
                break
            length = header & _LENGTH
            if not header & _DISCARDED:
                take(bytes(data[start + _HEADER_BYTES : start + _HEADER_BYTES + length]))
            position += (length + _HEADER_BYTES + 7) & ~7
        self._consumer[0] = position
        return records

    def close(self) -> None:
        """Unmaps the buffer; a second call does nothing. Records left stay for the next reader."""
        for view in (self._headers, self._data, self._producer, self._consumer):
            view.release()
        self._rest.close()
        self._consumer_page.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
