"""One question, one answer: records, sockets without a record, filters and order put together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from nodenet.conns.connection import Connection
from nodenet.conns.decode import offsets_by_netns
from nodenet.conns.filters import Compiled, Filter, compile_filter
from nodenet.conns.reader import ConnReader
from nodenet.times import rfc3339_ns

if TYPE_CHECKING:
    from nodenet.conns.security import Securities, Security
    from nodenet.conns.summary import By, Summary
    from nodenet.conns.totals import Total

#: Rows made at a time: few enough that a writer which encodes them and lets go of them works in
#: the processor's cache and in memory it has used before. Touching fresh memory costs more than
#: making the rows.
BATCH_ROWS: Final = 512


def open_connections(
    reader: ConnReader,
    wanted: Filter,
    *,
    everything: bool = False,
    proxy: bool = False,
    older: bool = True,
) -> Iterator[list[Connection]]:
    """Open connections that pass the filter, in batches, by pod, then by start.

    ``everything``: every TCP socket of the node, listeners too. ``proxy``: also the proxy's own.
    ``older``: also those of enrolled pods that began before the enrolment. All errors come before
    the first batch.
    """
    names = reader.names
    compiled = compile_filter(wanted, names, time.time_ns())
    raw = reader.live_records()
    extra: list[Connection] = []
    if everything or (older and compiled.may_be_older and names.records):
        extra = _unrecorded(reader, raw, compiled.netns, everything=everything)
    return _in_order(reader, compiled, raw, extra, proxy=proxy or everything)


def _unrecorded(
    reader: ConnReader, raw: memoryview, netns: Collection[int] | None, *, everything: bool
) -> list[Connection]:
    """Connections without a record. Most lists have none, and then import nothing for it."""
    from nodenet.conns.census import Recorded, pods_with_more

    recorded, names = Recorded(raw), reader.names
    pods = [] if everything else pods_with_more(names.records, recorded, netns)
    if not everything and not pods:
        return []
    from nodenet.conns import unrecorded

    if everything:
        return unrecorded.everything_else(recorded, names, reader.cgroup_text, netns=netns)
    counters = reader.counters()
    certain = not (counters.over_limit or counters.no_storage)
    return unrecorded.older_than_enrolment(
        pods, recorded, names, reader.cgroup_text, certain=certain
    )


def closed_connections(
    reader: ConnReader, wanted: Filter, *, proxy: bool = False
) -> Iterator[list[Connection]]:
    """Lately closed connections that pass the filter, in batches, by pod, then by start."""
    compiled = compile_filter(wanted, reader.names, time.time_ns())
    raw = reader.closed_records(since_boot_ns(wanted.since_seconds))
    return _in_order(reader, compiled, raw, [], proxy=proxy)


def since_boot_ns(seconds: float | None) -> int:
    """CLOCK_BOOTTIME so many seconds ago; 0 for None."""
    if seconds is None:
        return 0
    return max(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(seconds * 1e9), 0)


def flat(batches: Iterable[list[Connection]]) -> list[Connection]:
    """All rows of all batches."""
    return [row for batch in batches for row in batch]


def _in_order(
    reader: ConnReader,
    compiled: Compiled,
    raw: memoryview,
    extra: list[Connection],
    *,
    proxy: bool,
) -> Iterator[list[Connection]]:
    """Rows of the records and, at the head of their pod, the extra ones, which have no start."""
    extras: defaultdict[int, list[Connection]] = defaultdict(list)
    for row in extra:
        extras[int(row.netns_cookie or 0)].append(row)
    recorded = offsets_by_netns(raw)
    named = _name_listeners(reader)
    pods = reader.names.by_netns

    def place(cookie: int) -> tuple[bool, str, int]:
        record = pods.get(cookie)
        return record is None, record.name if record else "", cookie

    def rows(offsets: list[int]) -> list[Connection]:
        return compiled.keep(named(reader.decoder.rows(raw, proxy=proxy, offsets=offsets)))

    pending: list[int] = []
    for cookie in sorted({*recorded, *extras}, key=place):
        if compiled.netns is not None and cookie not in compiled.netns:
            continue
        if cookie in extras:
            yield rows(pending)
            pending = []
            # their only order is that of the addresses
            yield compiled.keep(sorted(extras[cookie], key=lambda c: (c.local, c.remote, c.id)))
        pending += recorded.get(cookie, [])
        while len(pending) > BATCH_ROWS:
            yield rows(pending[:BATCH_ROWS])
            pending = pending[BATCH_ROWS:]
    yield rows(pending)


def _name_listeners(reader: ConnReader) -> Callable[[list[Connection]], list[Connection]]:
    """Fills in processes the kernel did not know, and costs nothing when it knew all."""
    lookup: Callable[[list[Connection]], list[Connection]] | None = None

    def named(rows: list[Connection]) -> list[Connection]:
        nonlocal lookup
        if all(row.pid is not None or row.dir != "in" for row in rows):
            return rows
        if lookup is None:
            from nodenet.conns.unrecorded import ListenerOwners

            lookup = ListenerOwners(reader.names).named
        return lookup(rows)

    return named


def summary(
    reader: ConnReader,
    wanted: Filter,
    by: By,
    *,
    now_ns: int,
    securities: Securities | None = None,
    only: Security | None = None,
) -> Summary:
    """Connections summed up since the enrolment, or since ``wanted.since_seconds`` before now.

    By pod and reason, without a filter but ``pod``, the kernel's totals are used, which miss
    nothing. Anything else is summed up from open and kept closed connections; connects that the
    capture refused leave no record there, and ``evicted`` says how many closed ones are missing.
    ``securities`` is what the proxies tell, ``only`` leaves the connections secured so.
    """
    from nodenet.conns.summary import FROM_TOTALS, Summary, summarise

    compiled = compile_filter(wanted, reader.names, now_ns)
    from_totals = (
        only is None
        and by in FROM_TOTALS
        and wanted == Filter(pod=wanted.pod)
        and compiled.test is None
    )
    since = None
    if wanted.since_seconds is not None:
        since = rfc3339_ns(now_ns - int(wanted.since_seconds * 1e9))
    # what is open now is summed up whenever it began
    timeless = compile_filter(msgspec.structs.replace(wanted, since_seconds=None), reader.names, 0)
    live = timeless.keep(reader.live(netns=compiled.netns))
    closed: list[Connection] = []
    totals: list[Total] | None = None
    if from_totals:
        totals = [t for t in reader.totals() if _is_of(t, reader, compiled)]
    else:
        closed = flat(closed_connections(reader, wanted))
    unknown = 0
    if only is not None and securities is not None:
        found = [(c, securities.of(c)) for c in (*live, *closed)]
        unknown = sum(1 for _, security in found if security is None)
        live = [c for c in live if securities.of(c) == only]
        closed = [c for c in closed if securities.of(c) == only]
    rows, total, known = summarise(by, live, closed, totals, since=since, securities=securities)
    counters = reader.counters()
    enrolled = min((r.enrolled_at for r in reader.names.records), default=None)
    return Summary(
        ok=True,
        since=since or enrolled,
        by=by,
        rows=rows,
        totals=total,
        evicted=0 if from_totals else counters.evicted,
        events_lost=counters.events_lost,
        plain_known=known,
        security_unknown=unknown,
    )


def _is_of(total: Total, reader: ConnReader, compiled: Compiled) -> bool:
    if compiled.netns is None:
        return True
    record = reader.names.by_pod_id.get(total.pod_id)
    return record is not None and record.netns_cookie in compiled.netns
