"""Order and batches of a list."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from nodenet.abi import ConnFlag, Direction
from nodenet.conns import query
from nodenet.conns.decode import Decoder
from nodenet.conns.filters import Filter
from nodenet.conns.names import Names
from nodenet.conns.query import closed_connections, flat, open_connections
from nodenet.conns.reader import ConnReader
from nodenet.paths import Instance

Record = Callable[..., bytes]


class _Fixed(ConnReader):
    """A reader of records that are there already."""

    def __init__(self, names: Names, raw: bytes) -> None:
        super().__init__(Instance("none"))
        self.names = names
        self.raw = raw
        self.__dict__["decoder"] = Decoder(names, lambda number: None, 0)

    def live_records(self) -> memoryview:
        return memoryview(self.raw)

    def closed_records(self, since_boot_ns: int = 0) -> memoryview:
        return memoryview(self.raw)


def test_by_pod_then_by_start(names: Names, record: Record) -> None:
    raw = b"".join(
        record(cookie=cookie, netns=netns, start_ns=start)
        for cookie, netns, start in ((1, 99, 1), (2, 42, 9), (3, 41, 8), (4, 42, 3), (5, 41, 7))
    )
    rows = flat(open_connections(_Fixed(names, raw), Filter(), older=False))
    assert [(r.pod, r.id) for r in rows] == [
        ("shop/cart-7d9f6b", "5"),
        ("shop/cart-7d9f6b", "3"),
        ("shop/db-1", "4"),
        ("shop/db-1", "2"),
        (None, "1"),
    ]
    closed = flat(closed_connections(_Fixed(names, raw), Filter(pod=["db"])))
    assert [r.id for r in closed] == ["4", "2"]


def test_batches_are_bounded_and_lose_nothing(names: Names, record: Record) -> None:
    count = 2 * query.BATCH_ROWS + 7
    raw = b"".join(record(cookie=i + 1, netns=41 + i % 2, start_ns=i + 1) for i in range(count))
    batches = list(open_connections(_Fixed(names, raw), Filter(), older=False))
    assert max(map(len, batches)) <= query.BATCH_ROWS
    assert len({r.id for r in flat(batches)}) == count


def test_what_began_before_the_enrolment_stands_first(
    names: Names, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = _Fixed(names, record(cookie=2, netns=41) + record(cookie=3, netns=42))
    (model,) = reader.decoder.rows(record(cookie=9, netns=42))
    older = msgspec.structs.replace(model, start=None, reason="pre-enrolment", id="9")

    monkeypatch.setattr(query, "_unrecorded", lambda *_, **__: [older])
    rows = flat(open_connections(reader, Filter()))
    assert [r.id for r in rows] == ["2", "9", "3"]
    assert [r.id for r in flat(open_connections(reader, Filter(pod=["cart"])))] == ["2"]


def test_the_proxys_own_sockets_are_hidden(names: Names, record: Record) -> None:
    reader = _Fixed(names, record(cookie=1) + record(cookie=2, flags=ConnFlag.PROXY))
    assert [r.id for r in flat(open_connections(reader, Filter(), older=False))] == ["1"]
    shown = flat(open_connections(reader, Filter(), proxy=True, older=False))
    assert [r.id for r in shown] == ["1", "2"]


def test_an_unknown_listener_does_not_stop_a_list(names: Names, record: Record) -> None:
    """Its namespace is looked at for the process; here there is none of that path."""
    raw = record(cookie=1, pid=0, comm=b"", dir=Direction.IN, netns=41)
    (row,) = flat(open_connections(_Fixed(names, raw), Filter(), older=False))
    assert row.process is None
