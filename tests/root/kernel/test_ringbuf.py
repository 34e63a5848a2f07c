"""The ring buffer reader against a program that fills the buffer."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import pytest

from nodenet import abi
from nodenet.kernel.loader import load_programs
from nodenet.kernel.maps import Map
from nodenet.kernel.programs import test_run
from nodenet.kernel.ringbuf import NotRingBuffer, RingBuffer
from nodenet.kernel.spec import BpfSpec

pytestmark = [pytest.mark.root, pytest.mark.bpf]

#: A record's size in the buffer: 8 bytes of head, 8 of number, and what is asked for, rounded up.
FULL, EMITTED = 1, 0


@pytest.fixture
def emitter(
    maps: dict[str, Map], sources_with: Callable[[str], BpfSpec], shared_cache: None
) -> Iterator[Callable[..., int]]:
    loaded = load_programs(maps, only={"nn_explain"}, source=sources_with("emitter.bpf.c"))

    def emit(times: int = 1, *, extra: int = 0, discard: bool = False) -> int:
        """What the last of ``times`` runs returned."""
        query = abi.QUERY.pack(netns=extra, asker=discard)
        return test_run(loaded["nn_explain"].fd, bytes(16) + query, repeat=times)[0]

    yield emit
    for one in loaded.values():
        one.close()


@pytest.fixture
def ring(maps: dict[str, Map]) -> Iterator[RingBuffer]:
    with RingBuffer(maps["evs"]) as opened:
        yield opened


def numbers(records: list[bytes]) -> list[int]:
    return [int.from_bytes(record[:8], "little") for record in records]


def test_records_come_in_order_and_once(ring: RingBuffer, emitter: Callable[..., int]) -> None:
    assert ring.drain() == []
    assert emitter(1000) == EMITTED
    assert numbers(ring.drain()) == list(range(1000))
    assert ring.drain() == []


def test_odd_lengths_and_many_turns_of_the_buffer(
    ring: RingBuffer, emitter: Callable[..., int]
) -> None:
    seen = 0
    # 20 MB through 4 MiB: every alignment meets the end
    for turn in range(60):
        extra = turn % 64
        assert emitter(8000, extra=extra) == EMITTED
        records = ring.drain()
        assert {len(record) for record in records} == {8 + extra}
        assert numbers(records) == list(range(seen, seen + 8000))
        seen += 8000


def test_a_bound_leaves_the_rest(ring: RingBuffer, emitter: Callable[..., int]) -> None:
    emitter(10)
    assert numbers(ring.drain(3)) == [0, 1, 2]
    assert numbers(ring.drain(100)) == [3, 4, 5, 6, 7, 8, 9]


def test_discarded_records_are_skipped(ring: RingBuffer, emitter: Callable[..., int]) -> None:
    emitter(2)
    emitter(3, discard=True)
    emitter(1)
    emitter(1, discard=True)
    assert numbers(ring.drain()) == [0, 1, 5]
    assert ring.drain() == []


def test_a_full_buffer_refuses_until_it_is_drained(
    ring: RingBuffer, emitter: Callable[..., int]
) -> None:
    each = 8 + 8 + 56
    room = abi.EVENTS_BYTES // each
    assert emitter(room + 100, extra=56) == FULL
    records = ring.drain(10 * room)
    assert numbers(records) == list(range(len(records)))
    assert room - 1 <= len(records) <= room
    assert emitter(extra=56) == EMITTED
    assert len(ring.drain()) == 1


def test_readable_while_there_are_records(ring: RingBuffer, emitter: Callable[..., int]) -> None:
    with select.epoll() as poll:
        poll.register(ring.fileno(), select.EPOLLIN)
        assert poll.poll(0) == []
        emitter(2)
        assert poll.poll(5) == [(ring.fileno(), select.EPOLLIN)]
        ring.drain(1)
        assert poll.poll(0) == [(ring.fileno(), select.EPOLLIN)]
        ring.drain()
        assert poll.poll(0) == []


def test_the_next_reader_goes_on_where_the_last_stopped(
    maps: dict[str, Map], emitter: Callable[..., int]
) -> None:
    emitter(5)
    with RingBuffer(maps["evs"]) as first:
        assert numbers(first.drain(2)) == [0, 1]
    with RingBuffer(maps["evs"]) as second:
        assert numbers(second.drain()) == [2, 3, 4]
        second.close()
        second.close()


def test_another_map_is_refused(maps: dict[str, Map]) -> None:
    with pytest.raises(NotRingBuffer, match="map pods: type 1 is no ring buffer"):
        RingBuffer(maps["pods"])
