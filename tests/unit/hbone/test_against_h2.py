"""The core against the `h2` package, an independent implementation, in both roles.

Two connections are driven by a list of random actions: tunnels open, bytes of any amount go both
ways and are consumed late or never, sides end and reset, windows change, and the bytes between
the two arrive in pieces of any size. What is sent has to arrive, in order and complete unless
there was a reset, and neither side may ever find fault with the other.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.hbone import hpack_codec
from nodenet.hbone.connection import Connection
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream

BAGGAGE = b"k8s.cluster.name=c,k8s.namespace.name=n"
CONNECT = [
    (b":method", b"CONNECT"),
    (b":authority", b"10.0.0.1:80"),
    (b"baggage", BAGGAGE),
]


#: What h2 raises for a stream that is over.
CLOSED = (h2.exceptions.StreamClosedError, h2.exceptions.StreamIDTooLowError)


@dataclass(slots=True)
class Way:
    """One direction of one tunnel."""

    sent: bytearray = field(default_factory=bytearray)
    got: bytearray = field(default_factory=bytearray)
    ended: bool = False
    end_seen: bool = False


@dataclass(slots=True)
class Tunnel:
    """One tunnel as both sides should see it."""

    number: int
    ours: Way = field(default_factory=Way)
    theirs: Way = field(default_factory=Way)
    stream: Stream | None = None
    status: int = 0
    authority: str = ""
    reset: bool = False
    held: int = 0
    """Bytes we have received and not consumed."""
    unacknowledged: int = 0
    """Bytes they have received and not acknowledged."""


def text(start: int, count: int) -> bytes:
    """Bytes that are different at each place of a stream."""
    token = b"%d." % start
    return (token * (count // len(token) + 1))[:count]


class Ear:
    """The receiver of a tunnel's stream."""

    def __init__(self, tunnel: Tunnel) -> None:
        self.tunnel = tunnel

    def data(self, payload: memoryview) -> None:
        self.tunnel.theirs.got += payload
        self.tunnel.held += len(payload)

    def ended(self) -> None:
        assert not self.tunnel.theirs.end_seen
        self.tunnel.theirs.end_seen = True

    def reset(self, code: int) -> None:
        self.tunnel.reset = True

    def writable(self) -> None:
        pass


class Pair:
    """One connection of ours and one of theirs, and the bytes between them."""

    def __init__(self, role: Role, local: LocalSettings, their_window: int, frame: int) -> None:
        self.role = role
        self.tunnels: dict[int, Tunnel] = {}
        self.connection = Connection(role, local, self)
        self.peer = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=role is Role.SERVER, header_encoding=None)
        )
        self.peer.local_settings = h2.settings.Settings(
            client=role is Role.SERVER,
            initial_values={
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: their_window,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: frame,
            },
        )
        self.peer.max_inbound_frame_size = frame
        self.peer.initiate_connection()
        self.to_them = bytearray()
        self.to_us = bytearray()
        self.pongs = 0
        self.settle()  # h2 does not allow for data sent before its first SETTINGS were read

    # -- the handler -----------------------------------------------------------------------------

    def on_request(self, stream: Stream, request: Request) -> None:
        tunnel = self.tunnels[stream.id]
        tunnel.stream = stream
        tunnel.authority = request.authority
        assert request.get(b"baggage") == BAGGAGE
        stream.receiver = Ear(tunnel)
        self.connection.respond(stream, 200, hpack_codec.fields([(b"baggage", BAGGAGE)]))

    def on_response(self, stream: Stream, response: Response) -> None:
        self.tunnels[stream.id].status = response.status
        assert response.get(b"baggage") == BAGGAGE

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        raise AssertionError(f"GOAWAY {last_stream_id} {code}")

    def on_writable(self) -> None:
        pass

    def on_pong(self, opaque: bytes) -> None:
        self.pongs += 1

    # -- what can happen -------------------------------------------------------------------------

    def open(self) -> None:
        if self.role is Role.SERVER:
            number = self.peer.get_next_available_stream_id()
            if self.peer.open_outbound_streams >= 200:
                return
            self.tunnels[number] = Tunnel(number)
            self.peer.send_headers(number, CONNECT)
        elif self.connection.can_open():
            rest = hpack_codec.field(b"baggage", BAGGAGE)
            stream = self.connection.open(hpack_codec.connect(b"10.0.0.1:80", rest))
            tunnel = self.tunnels[stream.id] = Tunnel(stream.id, stream=stream)
            stream.receiver = Ear(tunnel)

    def we_send(self, tunnel: Tunnel, count: int, *, end: bool = False) -> None:
        stream = tunnel.stream
        if stream is None or not (stream.answered or self.role is Role.CLIENT):
            return
        if stream.local_ended or stream.closed:
            return
        count = min(count, self.connection.sendable(stream))
        if count <= 0:
            return
        payload = text(len(tunnel.ours.sent), count)
        self.to_them += self.connection.outbox
        self.connection.outbox.clear()
        if count % 2:
            self.to_them += self.connection.data_header(stream, count, end)
        else:
            gap = bytearray(9)
            self.connection.write_data_header_into(gap, 0, stream, count, end)
            self.to_them += gap
        self.to_them += payload
        tunnel.ours.sent += payload
        tunnel.ours.ended |= end

    def they_send(self, tunnel: Tunnel, count: int, pad: int | None, *, end: bool = False) -> None:
        if not self.they_can(tunnel):
            return
        padding = 0 if pad is None else pad + 1
        window = self.peer.local_flow_control_window(tunnel.number)
        count = min(count, window - padding, self.peer.max_outbound_frame_size - padding)
        if count < 0:
            return
        payload = text(len(tunnel.theirs.sent), count)
        self.peer.send_data(tunnel.number, payload, end_stream=end, pad_length=pad)
        tunnel.theirs.sent += payload
        tunnel.theirs.ended |= end

    def they_can(self, tunnel: Tunnel) -> bool:
        if tunnel.reset or tunnel.theirs.ended:
            return False
        return self.role is Role.SERVER or bool(tunnel.status)

    def we_end(self, tunnel: Tunnel) -> None:
        if tunnel.stream is not None and not tunnel.stream.local_ended:
            self.connection.end(tunnel.stream)
            tunnel.ours.ended = True

    def they_end(self, tunnel: Tunnel) -> None:
        if self.they_can(tunnel):
            self.peer.end_stream(tunnel.number)
            tunnel.theirs.ended = True

    def we_reset(self, tunnel: Tunnel) -> None:
        if tunnel.stream is not None and not tunnel.stream.closed:
            self.connection.reset(tunnel.stream)
            tunnel.reset = True

    def they_reset(self, tunnel: Tunnel) -> None:
        if tunnel.reset or (self.role is Role.CLIENT and not tunnel.status):
            return
        try:
            self.peer.reset_stream(tunnel.number, 8)
        except h2.exceptions.StreamClosedError:
            return
        tunnel.reset = True

    def we_consume(self, tunnel: Tunnel, count: int) -> None:
        count = min(count, tunnel.held)
        if tunnel.stream is not None and count:
            self.connection.consumed(tunnel.stream, count)
            tunnel.held -= count

    def they_consume(self, tunnel: Tunnel) -> None:
        if tunnel.unacknowledged:
            self.peer.acknowledge_received_data(tunnel.unacknowledged, tunnel.number)
            tunnel.unacknowledged = 0

    def they_open_their_window(self, size: int) -> None:
        """Only wider: h2 takes no empty DATA while a window is negative."""
        size = max(size, self.peer.local_settings.initial_window_size)
        self.peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: size})

    # -- the wire --------------------------------------------------------------------------------

    def to_them_go(self, chunk: int) -> bool:
        self.to_them += self.connection.outbox
        self.connection.outbox.clear()
        taken = bytes(self.to_them[:chunk])
        del self.to_them[:chunk]
        for event in self.peer.receive_data(taken) if taken else ():
            self.they_hear(event)
        return bool(taken)

    def to_us_go(self, chunk: int) -> bool:
        self.to_us += self.peer.data_to_send()
        taken = bytes(self.to_us[:chunk])
        del self.to_us[:chunk]
        if taken:
            self.connection.receive(memoryview(taken))
        return bool(taken)

    def they_hear(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=number, headers=fields):
                assert [tuple(pair) for pair in fields] == CONNECT
                with contextlib.suppress(*CLOSED):  # reset by us since
                    self.peer.send_headers(number, [(b":status", b"200"), (b"baggage", BAGGAGE)])
                self.tunnels[number].authority = "10.0.0.1:80"
            case h2.events.ResponseReceived(stream_id=number, headers=fields):
                assert dict(fields)[b":status"] == b"200"
                self.tunnels[number].status = 200
            case h2.events.DataReceived(stream_id=number, data=payload):
                tunnel = self.tunnels[number]
                tunnel.ours.got += payload
                tunnel.unacknowledged += event.flow_controlled_length or 0
            case h2.events.StreamEnded(stream_id=number):
                self.tunnels[number].ours.end_seen = True
            case h2.events.StreamReset(stream_id=number):
                self.tunnels[number].reset = True
            case h2.events.ConnectionTerminated():
                raise AssertionError(repr(event))

    def settle(self) -> None:
        """Everything under way arrives and is consumed."""
        moving = True
        while moving:
            moving = self.to_them_go(1 << 20) | self.to_us_go(1 << 20)
            for tunnel in self.tunnels.values():
                self.we_consume(tunnel, tunnel.held)
                self.they_consume(tunnel)

    def check(self) -> None:
        connection = self.connection
        assert not connection.closed
        held = sum(s.received - s.taken for s in connection._streams.values())
        assert 0 <= held <= connection.unconsumed
        assert connection.unconsumed + connection.recv_window <= connection.settings.backlog
        for tunnel in self.tunnels.values():
            for way in (tunnel.ours, tunnel.theirs):
                assert len(way.got) <= len(way.sent)
                assert not way.end_seen or way.ended


ACTION = st.tuples(
    st.integers(0, 13), st.integers(0, 5), st.integers(0, 70_000), st.none() | st.integers(0, 255)
)


@settings(max_examples=100, deadline=None)
@given(
    role=st.sampled_from(list(Role)),
    window=st.sampled_from([1, 100, 65_535, 300_000, 4 << 20]),
    connection_window=st.sampled_from([65_535, 100_000, 16 << 20]),
    extra=st.sampled_from([0, 1000, 80 << 20]),
    their_window=st.sampled_from([1, 1000, 65_535, 1 << 20]),
    their_frame=st.sampled_from([16_384, 50_000]),
    actions=st.lists(ACTION, min_size=10, max_size=80),
)
def test_tunnels(
    role: Role,
    window: int,
    connection_window: int,
    extra: int,
    their_window: int,
    their_frame: int,
    actions: list[tuple[int, int, int, int | None]],
) -> None:
    local = LocalSettings(
        window=window,
        connection_window=connection_window,
        backlog=connection_window + extra,
        max_frame=their_frame,
    )
    pair = Pair(role, local, their_window, their_frame)
    for kind, which, size, pad in actions:
        if kind == 0 or not pair.tunnels:
            pair.open()
            continue
        tunnel = list(pair.tunnels.values())[which % len(pair.tunnels)]
        match kind:
            case 1 | 2:
                pair.we_send(tunnel, size, end=kind == 2 and size % 7 == 0)
            case 3 | 4:
                pair.they_send(tunnel, size, pad, end=kind == 4 and size % 7 == 0)
            case 5:
                pair.we_end(tunnel)
            case 6:
                pair.they_end(tunnel)
            case 7 if size % 4 == 0:
                pair.we_reset(tunnel)
            case 7 if size % 4 == 1:
                pair.they_reset(tunnel)
            case 8 | 9:
                pair.to_them_go(size)
            case 10 | 11:
                pair.to_us_go(size)
            case 12:
                pair.we_consume(tunnel, size)
                pair.they_consume(tunnel)
            case 13 if size % 8 == 0:
                pair.they_open_their_window(size)
            case _:
                pair.connection.ping(b"01234567")
                pair.peer.ping(b"76543210")
        pair.check()
    pair.settle()
    pair.check()
    for tunnel in pair.tunnels.values():
        if tunnel.reset:
            assert tunnel.ours.sent.startswith(tunnel.ours.got)
            assert tunnel.theirs.sent.startswith(tunnel.theirs.got)
            continue
        assert tunnel.authority == "10.0.0.1:80"
        for way in (tunnel.ours, tunnel.theirs):
            assert way.got == way.sent
            assert way.end_seen == way.ended
    # and it all can end
    for tunnel in pair.tunnels.values():
        pair.we_end(tunnel)
        pair.they_end(tunnel)
    pair.settle()
    assert pair.connection.active == 0
    assert pair.connection.unconsumed == 0
    assert pair.connection.acknowledged


@pytest.mark.parametrize("role", list(Role))
def test_many_bytes_both_ways(role: Role) -> None:
    """Far more than any window, with the sides reading at different speeds."""
    pair = Pair(role, LocalSettings(window=200_000, connection_window=300_000), 90_000, 50_000)
    for _ in range(3):
        pair.open()
    pair.settle()
    goal, rounds = 1_000_000, 0
    tunnels = list(pair.tunnels.values())
    while any(len(way.got) < goal for t in tunnels for way in (t.ours, t.theirs)):
        rounds += 1
        assert rounds < 1000
        tunnels.append(tunnels.pop(0))  # the connection's window goes to each in turn
        for tunnel in tunnels:
            pair.we_send(tunnel, 50_000)
            pair.they_send(tunnel, 50_000, None)
            pair.we_consume(tunnel, 20_000 * tunnel.number)
            if rounds % 3 == 0:
                pair.they_consume(tunnel)
        pair.to_them_go(33_333)
        pair.to_us_go(77_777)
        pair.check()
    for tunnel in pair.tunnels.values():
        pair.we_end(tunnel)
        pair.they_end(tunnel)
    pair.settle()
    for tunnel in pair.tunnels.values():
        assert tunnel.ours.got == tunnel.ours.sent
        assert tunnel.theirs.got == tunnel.theirs.sent
        assert tunnel.ours.end_seen and tunnel.theirs.end_seen
    assert pair.connection.active == 0


def test_a_refusal_is_understood() -> None:
    class Refusing(Pair):
        def on_request(self, stream: Stream, request: Request) -> None:
            self.connection.respond(stream, 503, end_stream=True)

    pair = Refusing(Role.SERVER, LocalSettings(), 65_535, 16_384)
    heard: list[h2.events.Event] = []
    pair.they_hear = heard.append  # type: ignore[assignment]  # another status than 200
    pair.open()
    pair.settle()
    answers = [event for event in heard if isinstance(event, h2.events.ResponseReceived)]
    assert [tuple(field) for field in answers[0].headers or ()] == [(b":status", b"503")]
    assert any(isinstance(event, h2.events.StreamEnded) for event in heard)
    assert pair.connection.active == 0
