"""Scripts of peers that break rules: what ends the stream, what ends the connection."""

from __future__ import annotations

import struct

import pytest

from nodenet.hbone import hpack_codec
from nodenet.hbone.connection import MAX_UNREAD_ANSWERS
from nodenet.hbone.errors import ErrorCode
from nodenet.hbone.settings import LocalSettings, Role
from tests.unit.hbone.scripted import (
    ACK,
    PREFACE,
    Ear,
    Play,
    block,
    connect,
    data,
    frame,
    goaway,
    headers,
    ping,
    rst,
    settings,
    window_update,
)

PROTOCOL = ErrorCode.PROTOCOL_ERROR
SIZE = ErrorCode.FRAME_SIZE_ERROR
FLOW = ErrorCode.FLOW_CONTROL_ERROR
CALM = ErrorCode.ENHANCE_YOUR_CALM
MIB = 1 << 20


# -- greeting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/1.1", b"\x16\x03\x01", b"P\0"])
def test_no_preface(raw: bytes, chunk: int) -> None:
    play = Play(Role.SERVER, greeted=False, chunk=chunk)
    play.dies(PROTOCOL, raw)


@pytest.mark.parametrize("first", [ping(b"01234567"), ACK, window_update(0, 5), frame(0x20, 0, 0)])
@pytest.mark.parametrize("role", list(Role))
def test_the_first_frame_is_settings(first: bytes, role: Role, chunk: int) -> None:
    play = Play(role, greeted=False, chunk=chunk)
    play.dies(PROTOCOL, PREFACE if role is Role.SERVER else b"", first)


def test_an_acknowledgement_too_many(server: Play) -> None:
    server.dies(PROTOCOL, ACK)


@pytest.mark.parametrize(
    ("code", "raw"),
    [
        (FLOW, settings((4, 1 << 31))),
        (PROTOCOL, settings((2, 2))),
        (PROTOCOL, settings((5, 100))),
        (PROTOCOL, frame(4, 0, 1, b"")),
        (SIZE, frame(4, 0, 0, b"12345")),
        (SIZE, frame(4, 1, 0, b"123456")),
        (CALM, frame(4, 0, 0, bytes(6 * 65))),
    ],
)
def test_settings_that_are_refused(server: Play, code: ErrorCode, raw: bytes) -> None:
    server.dies(code, raw)


# -- frames that end the connection --------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "raw"),
    [
        (PROTOCOL, data(0, b"x")),
        (PROTOCOL, headers(0, "a=b")),
        (PROTOCOL, frame(2, 0, 0, b"\0\0\0\0\5")),
        (PROTOCOL, rst(0, 8)),
        (PROTOCOL, frame(6, 0, 1, b"01234567")),
        (PROTOCOL, frame(7, 0, 1, bytes(8))),
        (PROTOCOL, window_update(0, 0)),
        (FLOW, window_update(0, 2**31 - 1)),
        (PROTOCOL, frame(5, 4, 1, b"\0\0\0\2" + block("a=b"))),
        (PROTOCOL, frame(9, 4, 1, b"")),
        # idle streams
        (PROTOCOL, data(1, b"x")),
        (PROTOCOL, rst(1, 8)),
        (PROTOCOL, window_update(1, 1)),
        (PROTOCOL, data(2, b"x")),
        # a client's stream with an even number
        (PROTOCOL, connect(2)),
        # sizes
        (SIZE, frame(2, 0, 1, b"1234")),
        (SIZE, frame(3, 0, 1, b"123")),
        (SIZE, frame(3, 0, 1, b"12345")),
        (SIZE, frame(6, 0, 0, b"1234567")),
        (SIZE, frame(6, 0, 0, b"123456789")),
        (SIZE, frame(7, 0, 0, b"1234567")),
        (SIZE, frame(8, 0, 0, b"123")),
        (SIZE, frame(0, 8, 1, b"")),
        (SIZE, frame(1, 0xC, 1, b"")),
        # padding
        (PROTOCOL, frame(1, 0xC, 1, b"\x05abcd")),
        (PROTOCOL, frame(1, 0x24, 1, b"1234")),
        (PROTOCOL, frame(1, 0x2C, 1, b"\x01123451"[:6])),
        # header blocks
        (ErrorCode.COMPRESSION_ERROR, frame(1, 4, 1, b"\xbe")),
        (ErrorCode.COMPRESSION_ERROR, frame(1, 4, 1, b"\x00\x05ab")),
        (PROTOCOL, frame(1, 0, 1, b"\x82") + frame(9, 4, 3, b"")),
        (PROTOCOL, frame(1, 0, 1, b"\x82") + data(1, b"x")),
        (PROTOCOL, frame(1, 0, 1, b"\x82") + ping(b"01234567")),
        (PROTOCOL, frame(1, 0, 1, b"\x82") + frame(0x40, 0, 1)),
        (PROTOCOL, frame(1, 0, 1, b"\x82") + connect(3)),
    ],
)
def test_the_connection_ends(server: Play, code: ErrorCode, raw: bytes) -> None:
    server.dies(code, raw)


@pytest.mark.parametrize("other", [data(1, b"x"), window_update(1, 1), connect(5)])
def test_a_header_block_is_interrupted(server: Play, other: bytes) -> None:
    """By frames that would be fine at any other time."""
    server.opens(1)
    server.dies(PROTOCOL, frame(1, 0, 3, b"\x82"), other)
    server.emits("reset 1 PROTOCOL_ERROR")


def test_padding_larger_than_data(server: Play) -> None:
    server.opens(1)
    server.dies(PROTOCOL, frame(0, 8, 1, b"\x04abc"))
    server.emits("reset 1 PROTOCOL_ERROR")


@pytest.mark.parametrize(
    ("code", "raw"),
    [
        (PROTOCOL, frame(5, 4, 1, b"\0\0\0\2" + block("a=b"))),
        (PROTOCOL, headers(2, ":status=200")),
        (PROTOCOL, headers(1, ":status=200")),
        (PROTOCOL, data(1, b"x")),
        (PROTOCOL, settings((2, 1))),
    ],
)
def test_a_server_that_breaks_rules(client: Play, code: ErrorCode, raw: bytes) -> None:
    client.dies(code, raw)


@pytest.mark.parametrize("kind", [0, 1, 4, 9, 0x77])
def test_a_frame_too_large_is_refused_unseen(kind: int) -> None:
    play = Play(Role.SERVER)
    play.opens(1)
    play.dies(SIZE, struct.pack("!I", MIB + 1)[1:] + bytes((kind, 0, 0, 0, 0, 1)))
    play.emits("reset 1 FRAME_SIZE_ERROR")


def test_a_header_block_too_large_is_refused_unseen(server: Play) -> None:
    server.dies(CALM, struct.pack("!I", 70_000)[1:] + bytes((1, 4, 0, 0, 0, 1)))


def test_every_stream_hears_of_it(server: Play) -> None:
    server.opens(1)
    server.opens(3)
    error = server.dies(PROTOCOL, data(0))
    server.emits("reset 1 PROTOCOL_ERROR", "reset 3 PROTOCOL_ERROR")
    assert error.line() == "HTTP/2 connection ended with PROTOCOL_ERROR: DATA on stream 0"
    server.receives(b"whatever")


# -- faults of one stream ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        [":method=CONNECT"],
        [":method=CONNECT", ":authority=a:1", ":path=/"],
        [":method=CONNECT", ":authority=a:1", "Upper=x"],
        [":method=CONNECT", ":authority=a:1", "connection=close"],
        [":method=CONNECT", ":authority=a:1", "x=a\nb"],
        [":method=CONNECT", "x=y", ":authority=a:1"],
        [":method=CONNECT", ":authority=a:1", "content-length=0"],
        [":method=CONNECT", ":authority=a:1", *["x=y"] * 127],
        [":status=200"],
        [],
    ],
)
def test_malformed_requests(server: Play, fields: list[str]) -> None:
    server.receives(headers(1, *fields)).sends(rst(1, PROTOCOL)).emits()
    # whatever was under way with it, and then life goes on
    server.receives(data(1, b"x"), data(1, end=True), connect(3)).emits("request 3 CONNECT a:1")


def test_a_header_list_too_large(chunk: int) -> None:
    server = Play(Role.SERVER, LocalSettings(max_header_list=1024), chunk=chunk)
    entry = b"\x40\x01x\x40" + b"y" * 64  # goes to the dynamic table, and counts 97
    table = entry + b"\xbe" * 12
    server.receives(frame(1, 5, 1, block(":method=CONNECT", ":authority=a:1") + table))
    server.sends(rst(1, PROTOCOL)).emits()
    # the table is as the peer has it
    server.receives(frame(1, 4, 3, block(":method=CONNECT", ":authority=a:1") + b"\xbe"))
    server.emits("request 3 CONNECT a:1")


def test_malformed_trailers(server: Play) -> None:
    stream = server.opens(1)
    server.receives(headers(1, ":method=CONNECT", end=True)).emits("reset 1 PROTOCOL_ERROR")
    server.sends(rst(1, PROTOCOL))
    assert stream.error
    server.opens(3)
    server.receives(headers(3, "x=y")).emits("reset 3 PROTOCOL_ERROR").sends(rst(3, PROTOCOL))


@pytest.mark.parametrize(
    "fields",
    [[], [":status=101"], [":status=20"], [":status=200", "upgrade=x"], [":method=CONNECT"]],
)
def test_malformed_responses(client: Play, fields: list[str]) -> None:
    stream = client.connection.open(hpack_codec.connect(b"b:2"))
    stream.receiver = Ear(client, stream)
    client.sends_anything()
    client.receives(headers(1, *fields)).emits("reset 1 PROTOCOL_ERROR").sends(rst(1, PROTOCOL))


def test_an_interim_response_that_ends_the_stream(client: Play) -> None:
    stream = client.connection.open(hpack_codec.connect(b"b:2"))
    stream.receiver = Ear(client, stream)
    client.sends_anything()
    client.receives(headers(1, ":status=103", end=True)).emits("reset 1 PROTOCOL_ERROR")
    client.sends(rst(1, PROTOCOL))


def test_data_before_the_response(client: Play) -> None:
    stream = client.connection.open(hpack_codec.connect(b"b:2"))
    stream.receiver = Ear(client, stream)
    client.sends_anything()
    client.receives(data(1, b"x")).emits("reset 1 PROTOCOL_ERROR").sends(rst(1, PROTOCOL))
    assert client.connection.unconsumed == 0


@pytest.mark.parametrize("late", [data(1, b"x"), data(1, end=True), headers(1, "a=b", end=True)])
def test_frames_after_the_end(server: Play, late: bytes) -> None:
    server.opens(1)
    server.receives(data(1, end=True)).emits("ended 1")
    server.receives(late).emits("reset 1 STREAM_CLOSED").sends(rst(1, ErrorCode.STREAM_CLOSED))


def test_data_on_a_closed_stream(server: Play) -> None:
    stream = server.opens(1)
    server.receives(data(1, end=True)).emits("ended 1")
    server.connection.end(stream)
    server.sends(data(1, end=True))
    server.receives(window_update(1, 5), rst(1, 0))  # these may cross the end
    server.receives(data(1, b"x")).sends(rst(1, ErrorCode.STREAM_CLOSED))


def test_data_after_a_reset_that_crossed_ours(server: Play) -> None:
    """The peer has reset the stream as well: it is not indulged any longer."""
    server.connection.reset(server.opens(1))
    server.sends(rst(1, 8))
    server.receives(rst(1, 8), data(1, b"x")).sends(rst(1, ErrorCode.STREAM_CLOSED))


@pytest.mark.parametrize("closed", [1, 3])
def test_headers_on_a_closed_stream(server: Play, closed: int) -> None:
    """Stream 3 was skipped, which closes it as well."""
    server.opens(1)
    server.receives(rst(1, 8)).emits("reset 1 CANCEL")
    server.opens(5)
    server.dies(ErrorCode.STREAM_CLOSED, connect(closed))
    server.emits("reset 5 STREAM_CLOSED")


def test_window_updates_of_a_stream(server: Play) -> None:
    server.opens(1)
    server.opens(3)
    server.receives(window_update(1, 0)).emits("reset 1 PROTOCOL_ERROR").sends(rst(1, PROTOCOL))
    server.receives(window_update(3, 2**31 - 1)).emits("reset 3 FLOW_CONTROL_ERROR")
    server.sends(rst(3, FLOW))


def test_an_initial_window_that_overflows(server: Play) -> None:
    server.opens(1)
    server.receives(window_update(1, 2**31 - 1 - 65535))
    server.dies(FLOW, settings((4, 65536)))
    server.emits("reset 1 FLOW_CONTROL_ERROR")


# -- more than was allowed -----------------------------------------------------------------------


def test_data_beyond_the_window_of_a_stream(chunk: int) -> None:
    server = Play(Role.SERVER, LocalSettings(window=100_000), chunk=chunk)
    server.consumes = False
    server.opens(1)
    server.receives(data(1, b"x" * 100_000)).emits("data 1 " + "x" * 100_000)
    server.receives(data(1, b"y")).emits("reset 1 FLOW_CONTROL_ERROR").sends(rst(1, FLOW))
    assert server.connection.unconsumed == 0


def test_padding_beyond_the_window_of_a_stream() -> None:
    server = Play(Role.SERVER, LocalSettings(window=100))
    server.opens(1)
    server.receives(data(1, b"x" * 50, pad=50)).emits("reset 1 FLOW_CONTROL_ERROR")
    server.sends(rst(1, FLOW))


def test_data_beyond_the_window_of_the_connection() -> None:
    local = LocalSettings(connection_window=65535, backlog=65535)
    server = Play(Role.SERVER, local)
    server.consumes = False
    server.opens(1)
    server.opens(3)
    server.receives(data(1, b"x" * 65535)).emits("data 1 " + "x" * 65535)
    server.dies(FLOW, data(3, b"y"))
    server.emits("reset 1 FLOW_CONTROL_ERROR", "reset 3 FLOW_CONTROL_ERROR")


def test_data_beyond_the_window_of_a_reset_stream(chunk: int) -> None:
    server = Play(Role.SERVER, LocalSettings(window=100_000), chunk=chunk)
    server.connection.reset(server.opens(1))
    server.sends(rst(1, 8))
    server.receives(data(1, bytes(60_000)), data(1, bytes(40_000))).sends()
    server.dies(FLOW, data(1, b"x"))


def test_streams_beyond_the_limit(chunk: int) -> None:
    server = Play(Role.SERVER, LocalSettings(max_streams=2), chunk=chunk)
    first = server.opens(1)
    server.opens(3)
    server.receives(connect(5), data(5, b"x"), rst(5, 8)).sends(rst(5, ErrorCode.REFUSED_STREAM))
    server.connection.reset(first)
    server.sends(rst(1, 8))
    server.opens(7)


def test_a_flood_of_continuations(server: Play) -> None:
    server.dies(CALM, frame(1, 0, 1, b"\x82"), *[frame(9, 0, 1)] * 33)


def test_a_header_block_that_never_ends(server: Play) -> None:
    part = frame(9, 0, 1, b"x" * 16384)
    server.dies(CALM, frame(1, 0, 1, b"x" * 16384), part, part, part, part)


def test_rapid_reset() -> None:
    """CVE-2023-44487: streams opened and reset before they can be of use."""
    server = Play(Role.SERVER)
    count = 0

    def flood() -> None:
        nonlocal count
        for count in range(1, 10_000):  # noqa: B007 counts from outside
            server.receives(connect(2 * count - 1), rst(2 * count - 1, 8))
            server.events.clear()

    with pytest.raises(Exception, match="ENHANCE_YOUR_CALM"):
        flood()
    assert 400 <= count <= 1100


def test_rapid_reset_of_answered_streams() -> None:
    server = Play(Role.SERVER)

    def flood() -> None:
        for number in range(1, 20_000, 2):
            server.opens(number)
            server.receives(rst(number, 8))
            server.events.clear()

    with pytest.raises(Exception, match="ENHANCE_YOUR_CALM"):
        flood()


@pytest.mark.parametrize("direction", ["in", "out"])
def test_tunnels_that_were_used_may_be_reset_at_any_rate(direction: str) -> None:
    server = Play(Role.SERVER)
    for number in range(1, 10_001, 2):
        stream = server.opens(number)
        if direction == "in":
            server.receives(data(number, b"x"))
        else:
            server.connection.data_header(stream, 1)
        server.receives(rst(number, 8))
        server.events.clear()
        server.receives(window_update(0, 1))
    assert server.connection.streams_opened == 5000


def test_a_pod_that_dies_resets_all_it_waits_for() -> None:
    server = Play(Role.SERVER)
    for round_number in range(2):
        first = 400 * round_number + 1
        numbers = range(first, first + 400, 2)
        server.receives(*(connect(number) for number in numbers))
        server.receives(*(rst(number, 8) for number in numbers))
        server.now += 60.0
    assert server.connection.active == 0


@pytest.mark.parametrize(
    "raw",
    [
        data(1),
        data(1, pad=0),
        frame(2, 0, 1, b"\0\0\0\0\5"),
        frame(0x99, 0, 0, b"abc"),
        ping(b"01234567", ack=True),
        ping(b"01234567"),
        settings(),
        settings((4, 5), (4, 50_000)),
        goaway(0, 0),
        data(3, b"x"),
        connect(5, end=True) + rst(5, 8),
        headers(7, ":status=5", end=True),
    ],
)
def test_floods_of_frames_of_no_use(raw: bytes) -> None:
    """The clock stands still, and the peer reads everything."""
    server = Play(Role.SERVER)
    server.opens(1)
    server.opens(3)
    server.receives(rst(3, 8))

    def flood() -> None:
        number = 5
        for _ in range(10_100):
            if raw[3] == 1:  # a new stream each time
                head = raw[:5] + struct.pack("!I", number)
                tail = b"".join((raw[9:-13], rst(number, 8)) if raw[-10] == 3 else (raw[9:],))
                server.receives(head + tail)
                number += 2
            else:
                server.receives(raw)
            server.sends_anything()

    with pytest.raises(Exception, match="ENHANCE_YOUR_CALM"):
        flood()


@pytest.mark.parametrize("raw", [ping(b"01234567"), settings(), data(3, b"x")])
def test_answers_that_are_never_read(raw: bytes) -> None:
    """As much time as there may be: the outbox has its limit all the same."""
    server = Play(Role.SERVER)
    server.opens(1)
    server.opens(3)
    server.receives(rst(3, 8))

    def flood() -> None:
        for _ in range(100_000):
            server.now += 1.0
            server.receives(raw)
            assert len(server.connection.outbox) < 150 * 1024

    with pytest.raises(Exception, match="ENHANCE_YOUR_CALM.* are not read"):
        flood()


def test_a_full_outbox_is_not_the_peers_fault() -> None:
    """The caller may put payload there too; only answers that nobody reads are counted."""
    server = Play(Role.SERVER)
    for _ in range(3 * MAX_UNREAD_ANSWERS):
        server.now += 1.0
        server.connection.outbox += bytes(1000)
        server.receives(ping(b"01234567"))
        server.sends_anything()
    server.connection.outbox += bytes(2 * MIB)
    server.receives(ping(b"01234567"))


def test_frames_that_cross_the_end_of_a_stream_cost_nothing() -> None:
    server = Play(Role.SERVER)
    server.opens(1)
    server.receives(data(1, b"x"), rst(1, 8))
    server.receives(*[window_update(1, 1) + rst(1, 0)] * 30_000)


def test_large_header_blocks_are_paid_for() -> None:
    server = Play(Role.SERVER, LocalSettings(max_streams=1_000_000))
    rest = hpack_codec.field(b"x", b"y" * 60_000)
    raw = hpack_codec.connect(b"a:1", rest)

    def flood() -> None:
        for number in range(1, 2000, 2):
            server.receives(frame(1, 4, number, raw))

    with pytest.raises(Exception, match="a large header block last"):
        flood()
