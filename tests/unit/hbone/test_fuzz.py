"""Bytes nobody thought of: nothing but H2Error may come of them, and nothing may grow.

Three sources: noise, frames with fields that nearly make sense, and a good conversation with
some bytes changed. Each goes in whole and in pieces; both must end in the same state.
"""

from __future__ import annotations

import random
import struct

import hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.hbone import hpack_codec
from nodenet.hbone.errors import ErrorCode, H2Error
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from tests.unit.hbone.scripted import (
    ACK,
    Play,
    block,
    connect,
    data,
    frame,
    goaway,
    headers,
    ping,
    rst,
    window_update,
)
from tests.unit.hbone.scripted import (
    settings as settings_frame,
)

LOCAL = LocalSettings(
    window=5000, connection_window=65_535, backlog=70_000, max_header_list=2048, max_streams=3
)


class Wild(Play):
    """Does something else with each stream, by its number."""

    def on_request(self, stream: Stream, request: Request) -> None:
        super().on_request(stream, request)
        stream.receiver = Late(self, stream)
        match stream.id // 2 % 5:
            case 0 | 1:
                self.connection.respond(stream, 200)
                self.connection.data_header(stream, min(3, self.connection.sendable(stream)))
            case 2:
                self.connection.respond(stream, 503, end_stream=True)
            case 3:
                self.connection.reset(stream, ErrorCode.CONNECT_ERROR)
            case 4:
                pass  # never answered

    def on_response(self, stream: Stream, response: Response) -> None:
        super().on_response(stream, response)
        if stream.id // 2 % 3 == 1:
            self.connection.end(stream)

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        super().on_goaway(last_stream_id, code)
        self.connection.shutdown()


def play(role: Role) -> Wild:
    """A connection with some streams open already."""
    made = Wild(role, LOCAL, peer=((3, 100),))
    if role is Role.SERVER:
        made.receives(connect(1), connect(3))
    else:
        for _ in range(3):
            stream = made.connection.open(hpack_codec.connect(b"a:1"))
            stream.receiver = Late(made, stream)
        made.receives(headers(1, ":status=200"))
    return made


class Late:
    """Consumes when everything is there: what is granted does not depend on the pieces."""

    def __init__(self, made: Play, stream: Stream) -> None:
        self.made, self.stream = made, stream

    def data(self, payload: memoryview) -> None:
        pass

    def ended(self) -> None:
        self.made.events.append(f"ended {self.stream.id}")
        self.made.connection.consumed(self.stream, self.stream.unconsumed)

    def reset(self, code: int) -> None:
        self.made.events.append(f"reset {self.stream.id} {code}")

    def writable(self) -> None:
        self.made.events.append(f"writable {self.stream.id}")
        self.made.connection.sendable(self.stream)


def outcome(role: Role, raw: bytes, cuts: list[int]) -> tuple[object, ...]:
    """What becomes of a connection that receives these bytes, in pieces of these sizes in turn."""
    made = play(role)
    connection = made.connection
    at, turn, error = 0, 0, None
    try:
        while at < len(raw):
            size = cuts[turn % len(cuts)] if cuts else len(raw)
            connection.receive(memoryview(raw[at : at + size]))
            at, turn = at + size, turn + 1
            check(made)
    except H2Error as failed:
        error = failed.code
        assert connection.closed and not connection.active
    check(made)
    return (
        made.events,
        bytes(connection.outbox),
        error,
        connection.active,
        connection.unconsumed,
        connection.recv_window,
        connection.send_window,
    )


def check(made: Wild) -> None:
    connection = made.connection
    assert len(connection.outbox) <= 150 * 1024
    assert len(connection._partial) <= 2048 + 300
    assert connection._block is None or len(connection._block) <= 2 * 2048 + 600
    assert connection.active <= 3
    assert len(connection._grace) <= 1024
    if not connection.closed:
        assert 0 <= connection.unconsumed
        assert connection.unconsumed + connection.recv_window <= 70_000


CUTS = st.lists(st.integers(1, 40), max_size=5)
ROLES = st.sampled_from(list(Role))
STREAMS = st.one_of(st.integers(0, 9), st.sampled_from([2**31 - 1, 2**31 + 1]))
BLOCKS = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            block(":method=CONNECT", ":authority=a:1"),
            block(":method=CONNECT", ":authority=a:1", "baggage=" + "b" * 100),
            block(":method=GET", ":scheme=x", ":path=/"),
            block(":status=200"),
            block(":status=100"),
            block("x=y"),
            hpack.Encoder().encode([(":method", "CONNECT"), (":authority", "a:1")]),
            b"\x20\x88",
            b"\xbe\xbf",
        ]
    ),
)
NUMBERS = st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 70_000))
FRAMES = st.one_of(
    st.builds(frame, st.integers(0, 12), st.integers(0, 255), STREAMS, st.binary(max_size=30)),
    st.builds(frame, st.just(0), st.sampled_from([0, 1, 8, 9]), STREAMS, st.binary(max_size=60)),
    st.builds(lambda stream, size: data(stream, bytes(size)), STREAMS, st.integers(0, 6000)),
    st.builds(frame, st.just(1), st.sampled_from([4, 5, 0, 12, 36]), STREAMS, BLOCKS),
    st.builds(frame, st.just(9), st.sampled_from([0, 4]), STREAMS, BLOCKS),
    st.builds(rst, STREAMS, NUMBERS),
    st.builds(window_update, STREAMS, NUMBERS),
    st.builds(goaway, STREAMS, NUMBERS, st.binary(max_size=10)),
    st.builds(ping, st.binary(min_size=8, max_size=8), ack=st.booleans()),
    st.builds(
        lambda pairs: settings_frame(*pairs),
        st.lists(st.tuples(st.integers(0, 8), NUMBERS), max_size=3),
    ),
    st.just(ACK),
)


@given(ROLES, st.binary(max_size=200), CUTS)
def test_noise(role: Role, raw: bytes, cuts: list[int]) -> None:
    assert outcome(role, raw, cuts) == outcome(role, raw, [])


@given(ROLES, st.integers(0, 12), st.integers(0, 255), STREAMS, st.binary(max_size=64), CUTS)
def test_noise_behind_a_frame_header(
    role: Role, kind: int, flags: int, stream: int, raw: bytes, cuts: list[int]
) -> None:
    head = struct.pack("!I", len(raw))[1:] + struct.pack("!BBI", kind, flags, stream)
    assert outcome(role, head + raw, cuts) == outcome(role, head + raw, [])


@settings(max_examples=400)
@given(ROLES, st.lists(FRAMES, max_size=12).map(b"".join), CUTS)
def test_frames_that_nearly_make_sense(role: Role, raw: bytes, cuts: list[int]) -> None:
    assert outcome(role, raw, cuts) == outcome(role, raw, [])


GOOD = (
    connect(5, "baggage=a=b")
    + data(1, b"hello" * 20)
    + data(3, b"x" * 50, pad=9)
    + window_update(0, 1000)
    + window_update(1, 1000)
    + ping(b"01234567")
    + frame(1, 0, 7, block(":method=CONNECT"))
    + frame(9, 4, 7, block(":authority=a:1"))
    + settings_frame((4, 100), (5, 20_000))
    + data(1, end=True)
    + headers(3, "x=y", end=True)
    + rst(5, 8)
    + frame(0x55, 3, 9, b"unknown")
    + goaway(0, 0, b"bye")
)


@settings(max_examples=400)
@given(st.integers(0, 2**32), st.integers(1, 6), CUTS)
def test_a_good_conversation_with_some_bytes_changed(
    seed: int, changes: int, cuts: list[int]
) -> None:
    rng = random.Random(seed)
    raw = bytearray(GOOD)
    for _ in range(changes):
        at = rng.randrange(len(raw))
        match rng.randrange(5):
            case 0:
                raw[at] = rng.randrange(256)
            case 1:
                raw[at] ^= 1 << rng.randrange(8)
            case 2:
                del raw[at : at + rng.randrange(1, 12)]
            case 3:
                raw[at:at] = rng.randbytes(rng.randrange(1, 12))
            case 4:
                piece = raw[at : at + rng.randrange(1, 60)]
                raw[at:at] = piece
        if not raw:
            return
    mutated = bytes(raw)
    assert outcome(Role.SERVER, mutated, cuts) == outcome(Role.SERVER, mutated, [])


def test_the_good_conversation_is_good() -> None:
    events, _, error, active, unconsumed, _, _ = outcome(Role.SERVER, GOOD, [])
    assert error is None
    assert (active, unconsumed) == (2, 0)
    assert isinstance(events, list)
    assert "goaway 0 NO_ERROR" in events
