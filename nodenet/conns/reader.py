"""Connection statistics of one instance, read from its pinned kernel objects. Needs no daemon.

    reader = ConnReader(Instance())
    for connection in reader.live():
        ...

Nothing here is written to the kernel, and nothing is cached but names: every call is a fresh look.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

from nodenet import abi
from nodenet.conns.connection import Connection
from nodenet.conns.decode import CgroupTexts, Decoder, find_record, written_records
from nodenet.conns.names import Names
from nodenet.errors import NotFound
from nodenet.paths import Instance

if TYPE_CHECKING:
    from nodenet.conns.totals import Counters, Total
    from nodenet.kernel.maps import Map

#: The kernel fills at most 32 KiB a read(2), whole records only.
_READ_BYTES = 32 << 10
_BUFFER_BYTES = 32 << 20


class NoStatistics(NotFound):
    """The instance has no pinned statistics: the capture was never loaded."""


class NoConnection(NotFound):
    """No open or lately closed connection has that id."""


class ConnReader:
    """Open and closed connections, totals and counters of an instance.

    Every method raises `NoStatistics` when the instance is not loaded, PermissionError or
    NotPermitted when this process may not read it.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.names = Names(instance)
        self.cgroup_text = CgroupTexts()

    @cached_property
    def decoder(self) -> Decoder:
        """What makes rows of this reader's records."""
        return Decoder(self.names, self.cgroup_text)

    def live(
        self, *, proxy: bool = False, netns: Collection[int] | None = None
    ) -> list[Connection]:
        """Open connections of enrolled pods, in no particular order.

        ``proxy`` True adds the proxy's own sockets (then a captured flow appears twice), ``netns``
        keeps only those namespaces, by cookie. Listeners are no connections.
        """
        return self.decoder.rows(self.live_records(), proxy=proxy, netns=netns)

    def live_records(self) -> memoryview:
        """The raw records behind `live` (`nodenet.abi.EVENT`, back to back)."""
        try:
            fd = os.open(self.instance.links / "iter_conns", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise self._missing() from error
        # One mapping, touched only where the kernel writes: joining chunks would touch it twice,
        # and touching memory is what costs here.
        # Private, because a shared one does not really grow when it is resized.
        buffer = mmap.mmap(-1, _BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        end = 0
        try:
            while True:
                if len(buffer) - end < _READ_BYTES:
                    buffer.resize(2 * len(buffer))
                with memoryview(buffer) as view, view[end:] as rest:
                    try:
                        count = os.readv(fd, [rest])
                    except BlockingIOError:
                        continue  # a million sockets without a record: it wants to be asked again
                if not count:
                    return memoryview(buffer)[:end]
                end += count
        finally:
            os.close(fd)

    def closed(
        self,
        *,
        proxy: bool = False,
        netns: Collection[int] | None = None,
        since_boot_ns: int = 0,
    ) -> list[Connection]:
        """The connections that closed lately, in no particular order.

        At most `nodenet.abi.CLOSED_KEPT`; ``evicted`` of `counters` says how many are no longer
        there. ``since_boot_ns`` (CLOCK_BOOTTIME) leaves out those that ended before.
        """
        return self.decoder.rows(self.closed_records(since_boot_ns), proxy=proxy, netns=netns)

    def closed_records(self, since_boot_ns: int = 0) -> memoryview:
        """The raw records behind `closed`."""
        with self._open("closed") as table:
            return written_records(table.read_all().values, since_boot_ns)

    def find(self, cookie: int) -> Connection:
        """The connection with that socket cookie, open or lately closed, the proxy's own too.

        `NoConnection` when there is none.
        """
        # the open ones first: it may close between the two looks, but never opens again
        for raw in (self.live_records(), self.closed_records()):
            found = find_record(raw, cookie)
            if found is not None:
                return self.decoder.rows(found)[0]
        raise NoConnection(
            f"no connection {cookie:x}: closed or never seen (kept: the last {abi.CLOSED_KEPT})",
            hint="try: nodenet conn watch",
        )

    def totals(self) -> list[Total]:
        """Sums since the enrolment by pod, direction, reason and backend.

        Bytes and segments are those of closed connections; `live` has those of open ones.
        """
        from nodenet.conns.totals import read_totals

        with self._open("agg") as table:
            return read_totals(table, self.names)

    def counters(self) -> Counters:
        """Decisions taken, connections recorded, and what was lost."""
        from nodenet.conns.totals import read_counters

        with self._open("stat") as stat, self._open("live") as live:
            return read_counters(stat, live)

    def _open(self, name: str) -> Map:
        # here and above: listing open connections is one read, and must not pay for bpf(2)
        from nodenet.kernel.maps import Map

        try:
            return Map.open(self.instance.maps / name)
        except NotFound as error:
            raise self._missing() from error

    def _missing(self) -> NoStatistics:
        pin = self.instance.maps / "conns"
        if pin.exists():
            pin = self.instance.links / "iter_conns"
        return NoStatistics(
            f"no statistics: {pin} is not there",
            hint="start capture: nodenet node run, or nodenet lab up",
        )
