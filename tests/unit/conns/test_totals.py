"""The kernel's sums."""

from __future__ import annotations

from nodenet import abi
from nodenet.abi import Direction, Live, Reason, Stat, Via
from nodenet.conns.names import Names
from nodenet.conns.totals import read_counters, read_lost, read_totals


class Table:
    """An open per-CPU map, or an array, as far as sums need it."""

    def __init__(self, content: dict[bytes, list[bytes]]) -> None:
        self._content = content

    def items_percpu(self) -> list[tuple[bytes, list[bytes]]]:
        return list(self._content.items())

    def lookup_percpu(self, key: bytes) -> list[bytes] | None:
        return self._content.get(key)

    def lookup(self, key: bytes) -> bytes | None:
        return self._content.get(key, [None])[0]


def _counter(*values: int) -> list[bytes]:
    return [abi.COUNTER.pack(value=value) for value in values]


def _index(number: int) -> bytes:
    return abi.INDEX_KEY.pack(index=number)


def test_totals_are_summed_over_processors(names: Names) -> None:
    key = abi.AGG_KEY.pack(pod_id=41, dir=Direction.OUT, reason=Reason.CAPTURED, via=Via.EBPF)
    other = abi.AGG_KEY.pack(pod_id=7, dir=Direction.IN, reason=Reason.PROXY_DOWN)
    values = [
        abi.AGG.pack(opened=3, closed=2, failed=1, bytes_sent=1 << 40, segs_out=5),
        abi.AGG.pack(opened=4, bytes_received=9, retransmits=2),
    ]
    table = Table({key: values, other: [abi.AGG.pack(failed=6), abi.AGG.pack()]})
    gone, cart = read_totals(table, names)  # type: ignore[arg-type]
    assert (cart.pod, cart.dir, cart.reason, cart.rule, cart.captured_by) == (
        "shop/cart-7d9f6b", "out", "captured", "O8", "ebpf",
    )  # fmt: skip
    assert (cart.opened, cart.closed, cart.failed) == (7, 2, 1)
    assert (cart.bytes_sent, cart.bytes_received, cart.retransmits) == (1 << 40, 9, 2)
    assert (gone.pod, gone.pod_id, gone.dir, gone.rule, gone.failed) == (None, 7, "in", "I9", 6)


def test_counters() -> None:
    stat = Table(
        {_index(i): _counter(0, 0) for i in range(abi.STAT_MAX)}
        | {
            _index(Reason.CAPTURED): _counter(2, 3),
            _index(Stat.IN + Reason.PROXY_DOWN): _counter(1, 0),
            _index(Stat.EVENTS_LOST): _counter(4, 8),
            _index(Stat.OVER_LIMIT): _counter(0, 1),
        }
    )
    live = Table(
        {_index(Live.NOW): _counter(17), _index(Live.CLOSED): _counter(abi.CLOSED_KEPT + 5)}
    )
    found = read_counters(stat, live)  # type: ignore[arg-type]
    assert [(d.dir, d.reason, d.rule, d.count) for d in found.decisions] == [
        ("out", "captured", "O8", 5),
        ("in", "proxy-down", "I9", 1),
    ]
    assert (found.live, found.closed) == (17, abi.CLOSED_KEPT + 5)
    assert (found.closed_kept, found.evicted) == (abi.CLOSED_KEPT, 5)
    assert (found.events_lost, found.over_limit, found.no_storage) == (12, 1, 0)
    assert read_lost(stat) == 12  # type: ignore[arg-type]


def test_few_closed_ones_are_all_kept() -> None:
    live = Table({_index(Live.CLOSED): _counter(3)})
    found = read_counters(Table({}), live)  # type: ignore[arg-type]
    assert (found.live, found.closed_kept, found.evicted) == (0, 3, 0)
