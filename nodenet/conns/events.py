"""Connections as they open, are established, refused and close.

The kernel writes an event only while somebody wants that kind: `EventReader` keeps a deadline in
the ``watch`` map ahead of now, so that a reader that was killed costs nothing after a few seconds.
The ring buffer has one consumer position, so there is one reader at a time, held by a lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from nodenet import abi
from nodenet.abi import EventKind
from nodenet.conns.connection import Connection
from nodenet.conns.decode import RECORD_SIZE, Decoder, end_times, kinds
from nodenet.conns.names import Names
from nodenet.conns.reader import NoStatistics
from nodenet.conns.totals import read_lost
from nodenet.errors import NodenetError, NotFound
from nodenet.kernel.maps import Map
from nodenet.kernel.ringbuf import RingBuffer
from nodenet.paths import Instance

NS: Final = 1_000_000_000
#: How far ahead of now the deadlines are kept, and how often they are moved.
WANTED_SECONDS: Final = 3.0
REFRESH_SECONDS: Final = 1.0
#: The kernel does not wake a reader (that would cost the connecting process), so it looks this
#: often. 4 MiB of ring buffer hold what 400 000 events a second write in that time.
POLL_SECONDS: Final = 0.05

EventName = Literal["open", "established", "refused", "closed"]
EVENT_NAMES: Final[dict[EventKind, EventName]] = {
    EventKind.OPEN: "open",
    EventKind.ESTABLISHED: "established",
    EventKind.REFUSED: "refused",
    EventKind.CLOSED: "closed",
}
ALL_EVENTS: Final[tuple[EventName, ...]] = tuple(EVENT_NAMES.values())
_KINDS: Final[dict[EventName, EventKind]] = {name: kind for kind, name in EVENT_NAMES.items()}


class Event(Connection, frozen=True, gc=False):
    """What happened to a connection, with the connection as it was then."""

    event: EventName
    time: str
    """RFC 3339 UTC, microseconds."""


class Lost(msgspec.Struct, frozen=True, gc=False):
    """Events that nobody will see."""

    event: Literal["lost"]
    time: str
    count: int | None
    """How many; None when the reader was held up for so long that the kernel stopped writing."""


class ReaderBusy(NodenetError):
    """Another process reads the events; ``pid`` is its id, 0 when it does not say."""

    def __init__(self, pid: int, who: str) -> None:
        by = f"pid {pid} ({who})" if pid else "another process"
        super().__init__(f"events are being read by {by}; one reader at a time")
        self.pid = pid


class EventReader:
    """The events of one instance; a context manager around the loop that reads them::

        with EventReader(Instance(), ("refused", "closed")) as reader:
            for batch in reader:
                ...

    Entering raises `ReaderBusy`, `NoStatistics` or NotPermitted. Events of before are not seen.
    """

    def __init__(
        self,
        instance: Instance,
        events: Collection[EventName] = ALL_EVENTS,
        *,
        names: Names | None = None,
        who: str = "nodenet",
    ) -> None:
        self.instance = instance
        self.kinds = frozenset(_KINDS[name] for name in events)
        self._who = who
        self._decoder = Decoder(names or Names(instance))
        self._lock: int | None = None
        self._maps: list[Map] = []
        self._ring: RingBuffer | None = None
        self._lost = 0
        self._wanted_until = 0

    def __enter__(self) -> Self:
        try:
            self._acquire()
            self._watch = self._open("watch")
            self._stat = self._open("stat")
            self._ring = RingBuffer(self._open("evs"))
            self._lost = read_lost(self._stat)
            self._began_ns = _boot_ns()
            self._want()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[Event | Lost]]:
        """Batches of one event or more, for ever."""
        while True:
            if batch := self.read(1.0):
                yield batch

    def read(self, timeout_seconds: float) -> list[Event | Lost]:
        """The events since the last call; waits for one at most so long, then none.

        Must be called again within `WANTED_SECONDS`, else the kernel stops writing, which the
        next call reports as `Lost` without a count.
        """
        until = time.monotonic() + timeout_seconds
        while True:
            batch = self.poll()
            remaining = until - time.monotonic()
            if batch or remaining <= 0:
                return batch
            time.sleep(min(POLL_SECONDS, remaining))

    def poll(self) -> list[Event | Lost]:
        """What is there now; never waits. Moves the deadlines when it is time."""
        assert self._ring is not None, "not entered"
        found: list[Event | Lost] = []
        now = _boot_ns()
        if now > self._wanted_until:
            found.append(Lost("lost", self._decoder.time(now), None))
        if now > self._wanted_until - int((WANTED_SECONDS - REFRESH_SECONDS) * NS):
            self._want()
        raw = b"".join(r for r in self._ring.drain() if len(r) == RECORD_SIZE)
        if raw:
            found += self._events(raw)
        lost = read_lost(self._stat)
        if lost > self._lost:
            found.append(Lost("lost", self._decoder.time(now), lost - self._lost))
        self._lost = lost
        return found

    def close(self) -> None:
        """Tells the kernel to stop writing and lets the next reader in; may be called twice."""
        if self._wanted_until and self._maps:
            self._want(0)
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        while self._maps:
            self._maps.pop().close()
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def _events(self, raw: bytes) -> Iterator[Event]:
        rows = self._decoder.rows(raw)
        for row, kind, end_ns in zip(rows, kinds(raw), end_times(raw), strict=True):
            # what an earlier reader left behind, or another one's kinds
            if end_ns < self._began_ns or kind not in self.kinds:
                continue
            moment = self._decoder.time(end_ns)
            yield Event(*(*msgspec.structs.astuple(row), EVENT_NAMES[EventKind(kind)], moment))

    def _want(self, until_ns: int | None = None) -> None:
        if until_ns is None:
            until_ns = _boot_ns() + int(WANTED_SECONDS * NS)
        value = abi.COUNTER.pack(value=until_ns)
        for kind in self.kinds:
            self._watch.update(abi.INDEX_KEY.pack(index=kind), value)
        self._wanted_until = until_ns

    def _open(self, name: str) -> Map:
        try:
            table = Map.open(self.instance.maps / name)
        except NotFound as error:
            raise NoStatistics(
                f"no statistics: {self.instance.maps / name} is not there",
                hint="start capture: nodenet node run, or nodenet lab up",
            ) from error
        self._maps.append(table)
        return table

    def _acquire(self) -> None:
        self.instance.run.mkdir(parents=True, exist_ok=True)
        path = self.instance.run / "events.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid, _, who = os.read(lock, 100).decode(errors="replace").strip().partition(" ")
            os.close(lock)
            raise ReaderBusy(int(pid) if pid.isdigit() else 0, who) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()} {self._who}\n".encode())
        self._lock = lock


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
