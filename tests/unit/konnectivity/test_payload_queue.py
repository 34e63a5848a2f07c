"""Payload between two hops: nothing lost, nothing reordered, no copy where none is needed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.konnectivity.packets import MAX_PAYLOAD_BYTES, Data, data_span, pull_packet, push_data
from nodenet.konnectivity.payload_queue import JOINED_BYTES, PayloadQueue


def push(queue: PayloadQueue, payload: bytes, raw: bool, connect_id: int = 7) -> None:
    if raw:
        message = push_data(connect_id, payload)
        span = data_span(message)
        assert span is not None
        queue.push(message, span.start, span.end)
    else:
        queue.push(payload, 0, len(payload))


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50) | st.integers(1, 90_000), st.booleans()), max_size=12),
    st.integers(1000, 200_000),
    st.lists(st.integers(100, 300_000), min_size=1, max_size=5),
)
def test_what_goes_in_comes_out_in_messages_within_the_limits(
    sizes: list[tuple[int, bool]], gather: int, mosts: list[int]
) -> None:
    payloads = [(bytes([at]) * size, raw) for at, (size, raw) in enumerate(sizes)]
    queue = PayloadQueue()
    for payload, raw in payloads:
        push(queue, payload, raw)
    wanted = b"".join(payload for payload, _ in payloads)
    assert queue.size == len(wanted)
    out = b""
    turn = 0
    while queue:
        most = mosts[turn % len(mosts)]
        turn += 1
        pieces, size = queue.pull(7, gather, most)
        packet = pull_packet(b"".join(pieces))
        assert isinstance(packet, Data) and packet.connect_id == 7
        assert 0 < len(packet.payload) == size <= most
        out += packet.payload
    assert out == wanted and queue.size == 0


def test_a_lone_message_is_the_same_object() -> None:
    queue = PayloadQueue()
    message = push_data(7, b"small")
    queue.push(message, len(message) - 5, len(message))
    pieces, size = queue.pull(7, 1000, 1000)
    assert pieces[0] is message and len(pieces) == 1 and size == 5


def test_the_last_bytes_of_a_large_message_do_not_keep_it() -> None:
    queue = PayloadQueue()
    large = memoryview(bytearray(range(250)) * 1000)
    queue.push(large, 0, len(large))
    queue.pull(7, 1 << 20, len(large) - 10)
    (_, rest), size = queue.pull(7, 1 << 20, 1 << 20)
    assert rest == large[-10:] and size == 10
    assert isinstance(rest, bytes)


def test_a_large_message_is_never_copied_into_another() -> None:
    queue = PayloadQueue()
    large = bytes(40_000)
    queue.push(large, 0, len(large))
    queue.push(b"x", 0, 1)
    (_, first, second), size = queue.pull(7, 1 << 20, 1 << 30)
    assert first is large and second == b"x" and size == 40_001


def test_what_would_be_too_much_together_leaves_one_after_the_other() -> None:
    queue = PayloadQueue()
    for size in (60_000, 60_000, 200_000, 1):
        queue.push(bytes(size), 0, size)
    sizes = []
    while queue:
        pieces, size = queue.pull(7, 128 << 10, 1 << 30)
        assert size == sum(map(len, pieces[1:]))
        sizes.append(size)
    assert sizes == [120_000, 200_000, 1], "nothing is divided that need not be"


def test_small_ones_that_gathered_leave_together() -> None:
    queue = PayloadQueue()
    for number in range(100):
        push(queue, b"%03d" % number, raw=bool(number % 2))
    pieces, size = queue.pull(7, 64 << 10, 1 << 30)
    assert size == 300 and not queue
    assert pull_packet(b"".join(pieces)) == Data(7, b"".join(b"%03d" % n for n in range(100)))


def test_crumbs_that_wait_cost_little_more_than_their_bytes() -> None:
    queue = PayloadQueue()
    for number in range(20_000):
        push(queue, b"%d" % (number % 10), raw=bool(number % 3))
    assert queue.size == 20_000 and len(queue._items) <= 1 + 20_000 // JOINED_BYTES
    got = b""
    while queue:
        pieces, _ = queue.pull(7, 1000, 1 << 30)
        packet = pull_packet(b"".join(pieces))
        assert isinstance(packet, Data)
        got += packet.payload
    assert got == b"".join(b"%d" % (number % 10) for number in range(20_000))


def test_what_an_upstream_peer_would_refuse_is_split() -> None:
    queue = PayloadQueue()
    push(queue, bytes(MAX_PAYLOAD_BYTES + 10), raw=False)
    sizes = []
    while queue:
        pieces, size = queue.pull(7, 256 << 10, 1 << 62)
        sizes.append(size)
        assert sum(map(len, pieces)) <= 4 << 20
    assert sum(sizes) == MAX_PAYLOAD_BYTES + 10


def test_clearing_forgets_all() -> None:
    queue = PayloadQueue()
    push(queue, b"abc", raw=True)
    assert queue.clear() == 3 and not queue and queue.size == 0
