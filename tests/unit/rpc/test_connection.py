"""Two cores wired back to back, and one core against bytes made by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.hbone import frames
from nodenet.hbone.errors import ErrorCode
from nodenet.hbone.settings import Setting
from nodenet.rpc import headers
from nodenet.rpc.call import Buffer, Call, CallHandler
from nodenet.rpc.connection import Connection, Role
from nodenet.rpc.errors import CallOver
from nodenet.rpc.limits import Limits
from nodenet.rpc.status import OK, Code, Status

PATH = "/AgentService/Connect"


class Recorder(CallHandler):
    """Writes down what it is told; sends what is in ``outgoing`` when it is asked."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.outgoing: deque[bytes] = deque()

    def answered(self, metadata: headers.Metadata) -> None:
        self.told.append(("answered", dict(metadata)))

    def received(self, message: bytes) -> None:
        self.told.append(message)

    def ended(self) -> None:
        self.told.append("ended")

    def closed(self, status: Status) -> None:
        self.told.append(status)

    def pull(self) -> Sequence[Buffer] | None:
        return (self.outgoing.popleft(),) if self.outgoing else None

    @property
    def messages(self) -> list[bytes]:
        return [t for t in self.told if isinstance(t, bytes)]


class Pair:
    """A client's and a server's core; `run` carries bytes until both are silent."""

    def __init__(
        self, limits: Limits | None = None, chunk: int = 1 << 30, *, views: bool = False
    ) -> None:
        self.accepted: list[tuple[Call, Recorder]] = []
        self.client = Connection(Role.CLIENT, now=0.0, limits=limits)
        self.server = Connection(Role.SERVER, now=0.0, limits=limits, accept=self._accept)
        self.chunk = chunk
        self.views = views
        """What arrives is a view, as from `read_buffer.ReadBuffer`."""
        self.carried = 0

    def _accept(self, call: Call) -> CallHandler | None:
        if call.path != PATH:
            return None
        handler = Recorder()
        self.accepted.append((call, handler))
        return handler

    def run(self, rounds: int = 100_000) -> None:
        for _ in range(rounds):
            moved = False
            for source, sink in ((self.client, self.server), (self.server, self.client)):
                data = b"".join(source.flush())
                self.carried += len(data)
                for at in range(0, len(data), self.chunk):
                    part = data[at : at + self.chunk]
                    sink.receive(memoryview(bytearray(part)) if self.views else part, 0.0)
                moved = moved or bool(data)
            if not moved:
                return
        raise AssertionError("the two never fall silent")

    def open(self) -> tuple[Call, Recorder, Call, Recorder]:
        ours = Recorder()
        call = self.client.open(PATH, ours, (("agentid", "a1"),))
        self.run()
        theirs, handler = self.accepted[-1]
        return call, ours, theirs, handler


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=200) | st.integers(0, 70_000).map(bytes), max_size=20),
    st.lists(st.binary(max_size=200), max_size=20),
    st.sampled_from([1, 2, 7, 1000, 40_000, 1 << 30]),
    st.booleans(),
)
def test_messages_arrive_whole_and_in_order(
    up: list[bytes], down: list[bytes], chunk: int, views: bool
) -> None:
    if chunk < 7:
        up = [m[:300] for m in up]
    pair = Pair(chunk=chunk, views=views)
    call, ours, theirs, handler = pair.open()
    theirs.answer((("serverid", "s"),))
    for message in up:
        call.send(message)
    handler.outgoing.extend(down)
    theirs.want()
    call.end()
    pair.run()
    assert handler.told == [*up, "ended"]
    theirs.end(Status(Code.UNKNOWN, "50 % über\n"))
    pair.run()
    assert ours.told == [
        ("answered", {"content-type": "application/grpc", "serverid": "s"}),
        *down,
        Status(Code.UNKNOWN, "50 % über\n"),
    ]
    assert handler.told[-1] == Status(Code.UNKNOWN, "50 % über\n")
    assert not pair.client.calls and not pair.server.calls


class Pieces(Recorder):
    """Takes large messages in their pieces."""

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        self.told.append(tuple(pieces))


def test_a_large_message_comes_in_the_pieces_it_arrived_in() -> None:
    pair = Pair()
    call, _, theirs, _ = pair.open()
    theirs.handler = handler = Pieces()
    content = bytes(range(250)) * 400
    call.send(content)
    data = b"".join(pair.client.flush())
    chunks = [memoryview(bytearray(data[at : at + 30_000])) for at in range(0, len(data), 30_000)]
    for chunk in chunks:
        pair.server.receive(chunk, 0.0)
    (pieces,) = handler.told
    assert isinstance(pieces, tuple)
    assert b"".join(pieces) == content
    # not copied, but for the little there is in the last chunk
    assert [getattr(piece, "obj", None) for piece in pieces] == [chunk.obj for chunk in chunks]


def test_a_small_piece_of_a_large_chunk_does_not_keep_it() -> None:
    pair = Pair()
    call, _, theirs, _ = pair.open()
    theirs.handler = handler = Pieces()
    call.send(bytes(60_000))
    call.send(bytes(50_000))
    data = b"".join(pair.client.flush())
    # the end of the first message, and the second one up to its last 1,000 bytes
    for part in (data[:50_000], data[50_000:-1000], data[-1000:]):
        pair.server.receive(memoryview(bytearray(part)), 0.0)
    first, second = handler.told
    assert isinstance(first, tuple) and isinstance(second, tuple)
    kept = [isinstance(piece, memoryview) for piece in (*first, *second)]
    assert kept == [True, False, True, True]


def test_a_piece_counts_against_the_whole_buffer_it_lies_in() -> None:
    """A read may fill a quarter of its buffer and a message a quarter of the read."""
    pair = Pair()
    call, _, theirs, _ = pair.open()
    theirs.handler = handler = Pieces()
    call.send(bytes(40_000))
    data = b"".join(pair.client.flush())
    buffer = memoryview(bytearray(256 << 10))
    buffer[: len(data)] = data
    pair.server.receive(buffer[: len(data)], 0.0)
    (pieces,) = handler.told
    assert isinstance(pieces, tuple)
    (piece,) = pieces
    assert isinstance(piece, bytes) and piece == bytes(40_000)


def test_a_large_message_in_crumbs_comes_in_one_piece() -> None:
    """A byte in a frame of its own takes fifty of memory, with all who hold it."""
    call, handler = Call(server(), 1, PATH, (), send_window=0, recv_window=0), Pieces()
    call.handler = handler
    content = bytes(range(250)) * 400
    stream = memoryview(b"\0" + len(content).to_bytes(4, "big") + content)
    most = 0
    for at in range(len(stream)):
        call.feed(stream[at : at + 1], 0, 1, 1 << 20)
        most = max(most, len(call._parts))
    assert handler.told == [content]
    assert most < 200


def test_a_message_with_empty_pieces_ends() -> None:
    """Nothing left to send is the end of a turn, and not a turn without one."""
    pair = Pair()
    call, _, _, theirs = pair.open()
    call.enqueue((b"", b"content", b""))
    call._schedule()
    pair.run()
    assert theirs.messages == [b"content"]
    assert not call._out


def test_request_metadata_arrives() -> None:
    pair = Pair()
    _, _, theirs, _ = pair.open()
    assert dict(theirs.metadata)["agentid"] == "a1"
    assert theirs.path == PATH


def test_more_than_every_window_is_carried() -> None:
    pair = Pair(Limits(stream_window=65_535, connection_window=131_072, max_frame_bytes=16_384))
    call, _, _, handler = pair.open()
    message = bytes(range(256)) * 4096
    for _ in range(3):
        call.send(message)
    pair.run()
    assert handler.messages == [message] * 3


def test_a_paused_call_keeps_a_window_and_stops_no_other() -> None:
    limits = Limits(stream_window=65_535, connection_window=65_535)
    pair = Pair(limits)
    slow, _, slow_theirs, slow_handler = pair.open()
    slow_theirs.pause()
    for _ in range(100):
        slow.send(bytes(10_000))
    pair.run()
    held = len(slow_handler.messages)
    assert held < 10 and slow.unsent > 900_000
    quick, _, _, quick_handler = pair.open()
    quick.send(b"now")
    quick.send(bytes(500_000))
    pair.run()
    assert quick_handler.messages == [b"now", bytes(500_000)]
    slow_theirs.resume()
    pair.run()
    assert len(slow_handler.messages) == 100


def test_what_is_pulled_waits_with_its_owner_while_nothing_is_taken() -> None:
    pair = Pair(Limits(stream_window=65_535, connection_window=65_535))
    _, ours, theirs, handler = pair.open()
    pair.client.calls[1].pause()
    handler.outgoing.extend([bytes(20_000)] * 50)
    theirs.want()
    pair.run()
    left = len(handler.outgoing)
    assert left > 40
    pair.client.calls[1].resume()
    pair.run()
    assert len(ours.messages) == 50


def test_a_shut_window_is_waited_for_in_silence() -> None:
    for of_connection in (False, True):
        pair = Pair()
        call, ours, _, handler = pair.open()
        if of_connection:
            pair.client._send_window = 0
        else:
            call._send_window = 0
        ours.outgoing.append(b"pulled")
        call.want()
        assert pair.client.flush() == [] and not pair.client.pending
        assert len(ours.outgoing) == 1, "nobody is asked for what could not go"
        pair.server._control(frames.window_update(0 if of_connection else 1, 100))
        pair.run()
        assert handler.messages == [b"pulled"]
        call._send_window = 0
        call.end()
        pair.run()
        assert handler.told[-1] == "ended", "the end needs no window"


def test_nothing_of_a_call_is_sent_while_congested() -> None:
    pair = Pair()
    call, _, _, handler = pair.open()
    pair.client.congested = True
    call.send(b"x")
    pair.run()
    assert handler.messages == []
    pair.client.congested = False
    assert pair.client.pending
    pair.run()
    assert handler.messages == [b"x"]


def test_streams_share_the_connection_by_turns() -> None:
    pair = Pair(Limits(quantum_bytes=10_000, flush_bytes=20_000))
    calls = [pair.open() for _ in range(3)]
    for call, _, _, _ in calls:
        for _ in range(20):
            call.send(bytes(5_000))
    data = b"".join(pair.client.flush())
    assert len(data) < 40_000, "a flush has a bound"
    pair.server.receive(data, 0.0)
    data = b"".join(pair.client.flush())
    pair.server.receive(data, 0.0)
    assert all(len(handler.messages) >= 1 for _, _, _, handler in calls)
    pair.run()
    assert all(len(handler.messages) == 20 for _, _, _, handler in calls)


def test_a_cancelled_call_is_told_to_the_other_side_only() -> None:
    pair = Pair()
    call, ours, _, handler = pair.open()
    call.send(b"never")
    call.cancel()
    pair.run()
    assert ours.told == []
    assert handler.told == [Status(Code.CANCELLED, "stream reset by the peer: CANCEL")]
    assert not pair.client.calls and not pair.server.calls
    with pytest.raises(CallOver):
        call.send(b"late")


def test_the_server_may_end_before_the_client() -> None:
    pair = Pair()
    call, ours, theirs, _ = pair.open()
    theirs.end(Status(Code.UNKNOWN, "no"))
    pair.run()
    assert ours.told == [Status(Code.UNKNOWN, "no")]
    assert not pair.client.calls and pair.client.over is None and pair.server.over is None
    assert call.over


def test_a_server_that_fails_a_call_waits_for_no_window() -> None:
    pair = Pair()
    _, ours, theirs, handler = pair.open()
    theirs._send_window = 0
    theirs.send(b"never")
    theirs.fail(Status(Code.INTERNAL, "malformed"))
    assert handler.told == [Status(Code.INTERNAL, "malformed")]
    pair.run()
    assert ours.told == [Status(Code.INTERNAL, "malformed")]
    theirs.fail(OK)
    assert len(handler.told) == 1


def test_what_is_wanted_goes_before_the_end() -> None:
    pair = Pair()
    call, ours, _, handler = pair.open()
    ours.outgoing.extend([b"a", b"b"])
    call.want()
    call.end()
    pair.run()
    assert handler.told == [b"a", b"b", "ended"]


def test_an_unknown_method_is_unimplemented() -> None:
    pair = Pair()
    ours = Recorder()
    pair.client.open("/Nobody/Home", ours)
    pair.run()
    assert ours.told == [Status(Code.UNIMPLEMENTED, "unknown method /Nobody/Home")]


def test_a_gibibyte_is_refused_before_it_comes() -> None:
    pair = Pair()
    call, ours, _, handler = pair.open()
    call._out.append(b"\x00" + (1 << 30).to_bytes(4, "big") + b"begin")
    call._out_bytes += 10
    call._schedule()
    pair.run()
    status = Status(Code.RESOURCE_EXHAUSTED, "message of 1073741824 bytes, over 16777216")
    assert ours.told == [status] and handler.told == [status]
    assert pair.client.over is None and pair.server.over is None, "other calls go on"


def test_a_compressed_message_is_refused() -> None:
    pair = Pair()
    call, ours, _, _ = pair.open()
    call._out.append(b"\x01\x00\x00\x00\x01x")
    call._out_bytes += 6
    call._schedule()
    pair.run()
    assert ours.told == [Status(Code.UNIMPLEMENTED, "compressed message")]


def test_a_stream_that_ends_inside_a_message_is_an_error() -> None:
    pair = Pair()
    call, ours, _, handler = pair.open()
    call._out.append(b"\x00\x00\x00\x00\x05abc")
    call._out_bytes += 8
    call.end()
    pair.run()
    assert handler.told == [Status(Code.INTERNAL, "the stream ended inside a message")]
    assert ours.told == handler.told


def test_a_lost_transport_ends_every_call() -> None:
    pair = Pair()
    _, ours, _, handler = pair.open()
    pair.server.lost("connection lost: reset")
    pair.client.lost("closed")
    assert handler.told == [Status(Code.UNAVAILABLE, "connection lost: reset")]
    assert ours.told == [Status(Code.UNAVAILABLE, "closed")]


def test_a_draining_server_takes_no_new_calls_and_keeps_the_old() -> None:
    pair = Pair()
    told: list[bool] = []
    pair.client.on_draining = lambda: told.append(True)
    call, _, _, handler = pair.open()
    pair.server.drain()
    pair.run()
    assert told
    with pytest.raises(CallOver):
        pair.client.open(PATH, Recorder())
    call.send(b"still")
    pair.run()
    assert handler.messages == [b"still"]


def test_a_call_that_crosses_the_goaway_is_refused() -> None:
    pair = Pair()
    pair.run()
    ours = Recorder()
    pair.server.drain()
    pair.client.open(PATH, ours)
    pair.run()
    assert isinstance(ours.told[-1], Status) and ours.told[-1].code is Code.UNAVAILABLE


def test_too_many_calls_are_refused() -> None:
    pair = Pair(Limits(max_calls=1))
    pair.open()
    ours = Recorder()
    pair.client.open(PATH, ours)
    pair.run()
    assert ours.told == [Status(Code.UNAVAILABLE, "stream reset by the peer: REFUSED_STREAM")]


def test_silence_is_answered_by_a_ping_and_then_by_the_end() -> None:
    limits = Limits(keepalive_seconds=10.0, keepalive_timeout_seconds=2.0)
    pair = Pair(limits)
    _, _, _, handler = pair.open()
    assert pair.server.next_timer() == 10.0
    pair.server.handle_timer(9.0)
    assert not pair.server.pending
    pair.server.handle_timer(10.0)
    assert pair.server.next_timer() == 12.0
    ping = b"".join(pair.server.flush())
    pair.client.receive(ping, 10.0)
    pair.server.receive(b"".join(pair.client.flush()), 10.5)
    assert pair.server.next_timer() == 20.5
    pair.server.handle_timer(20.5)
    pair.server.handle_timer(22.5)
    assert handler.told == [Status(Code.UNAVAILABLE, "keepalive ping not answered")]


# -- a peer that breaks the rules ------------------------------------------------------------------


def server(limits: Limits | None = None) -> Connection:
    """A server that has seen the preface and settings of its client."""
    made = Connection(Role.SERVER, now=0.0, limits=limits, accept=lambda _: Recorder())
    made.receive(frames.PREFACE + frames.settings([]), 0.0)
    made.flush()
    return made


def request(stream_id: int = 1, *, end_stream: bool = False) -> bytes:
    block = headers.request(
        PATH, authority="x", secure=False, user_agent="t", metadata=(("agentid", "a"),)
    )
    return headers.frame(stream_id, block, end_stream=end_stream, max_frame=16_384)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.header(kind, flags, stream_id, len(payload)) + payload


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (request(2), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 4, 0, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (
            frame(frames.HEADERS, 0, 1, b"\x83") + frames.ping(b"12345678"),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (
            frame(frames.HEADERS, 0, 1, b"\x83") + frame(frames.CONTINUATION, 0, 1) * 100,
            ErrorCode.ENHANCE_YOUR_CALM,
        ),
        (frame(frames.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
        (
            frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 31)]),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (frames.settings([(Setting.MAX_FRAME_SIZE, 1)]), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.window_update(0, frames.MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (request() + frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (request() + frames.window_update(1, frames.MAX_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
        (request(end_stream=True) + frame(frames.DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
        (request() + frame(frames.DATA, 8, 1, b"\x05x"), ErrorCode.PROTOCOL_ERROR),
        (frames.header(frames.HEADERS, 4, 1, 1 << 20), ErrorCode.FRAME_SIZE_ERROR),
        (request() + frames.header(frames.DATA, 0, 1, (1 << 24) - 1), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(data: bytes, code: ErrorCode) -> None:
    peer = server()
    peer.receive(data, 0.0)
    assert peer.over is not None and peer.over.code is Code.INTERNAL
    out = b"".join(peer.flush())
    at = out.index(frames.header(frames.GOAWAY, 0, 0, 0)[3:4] + b"\0\0\0\0\0") - 3
    assert int.from_bytes(out[at + 13 : at + 17], "big") == code


def test_a_peer_that_exceeds_a_window_is_cut() -> None:
    peer = server(Limits(stream_window=65_535, connection_window=1 << 20))
    peer.receive(request(), 0.0)
    peer.calls[1].pause()
    body = frame(frames.DATA, 0, 1, bytes(16_384))
    peer.receive(body * 5, 0.0)
    assert peer.over is not None and "stream window" in peer.over.text


def test_something_else_than_http2_is_cut_at_once() -> None:
    peer = Connection(Role.SERVER, now=0.0)
    peer.receive(b"GET / HTTP/1.1\r\n", 0.0)
    assert peer.over is not None


@pytest.mark.parametrize(
    ("method", "kind", "status"),
    [("\x82", "application/grpc", b"405"), ("\x83", "text/html", b"415")],
)
def test_a_request_that_is_no_grpc_gets_an_http_status(
    method: str, kind: str, status: bytes
) -> None:
    peer = server()
    block = method.encode("latin-1") + b"\x86\x04\x01/\x01\x01x\x00\x0ccontent-type"
    block += bytes((len(kind),)) + kind.encode()
    peer.receive(headers.frame(1, block, end_stream=True, max_frame=16_384), 0.0)
    assert status in b"".join(peer.flush()) and peer.over is None and not peer.calls


def test_padded_frames_are_read() -> None:
    peer = server()
    peer.receive(request(), 0.0)
    recorder = peer.calls[1].handler
    assert isinstance(recorder, Recorder)
    peer.receive(frame(frames.DATA, 8, 1, b"\x03\x00\x00\x00\x00\x02hi\0\0\0"), 0.0)
    assert recorder.messages == [b"hi"]


def test_a_flood_of_pings_by_a_peer_that_does_not_read_has_an_end() -> None:
    peer = server()
    peer.congested = True
    for _ in range(11):
        peer.receive(frames.ping(b"12345678") * 1000, 0.0)
    assert peer.over is not None and peer.over.code is Code.RESOURCE_EXHAUSTED


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_any_bytes_end_in_order_or_in_a_status(pieces: list[bytes], opened: bool) -> None:
    peer = server()
    if opened:
        peer.receive(request(), 0.0)
    for piece in pieces:
        peer.receive(piece, 0.0)
    peer.flush()
    peer.lost("gone")
    assert peer.over is not None and not peer.calls


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 10),
            st.integers(0, 255),
            st.sampled_from([0, 1, 2, 3, 5]),
            st.binary(max_size=40),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_any_frames_end_in_order_or_in_a_status(pieces: list[bytes], client: bool) -> None:
    peer = server()
    if client:
        peer = Connection(Role.CLIENT, now=0.0)
        peer.open(PATH, Recorder())
        peer.flush()
    else:
        peer.receive(request(), 0.0)
    for piece in pieces:
        peer.receive(piece, 0.0)
        peer.flush()
    peer.lost("gone")
    assert not peer.calls


def test_ok_is_what_ends_without_a_word() -> None:
    pair = Pair()
    call, ours, theirs, _ = pair.open()
    call.end()
    theirs.end()
    pair.run()
    assert ours.told == [OK]
