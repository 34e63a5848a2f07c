"""Conversations with the HTTP/2 core as scripts: bytes in, then events and bytes out.

Frames are built here without the core's own code. Events are lines such as ``data 1 hello``, so
that what differs can be read.
"""

from __future__ import annotations

import struct

import pytest

from nodenet.hbone.connection import Connection
from nodenet.hbone.errors import ErrorCode, H2Error, code_name
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ACK = b"\0\0\0\4\1\0\0\0\0"


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Any frame at all."""
    return (
        struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream_id) + payload
    )


def data(
    stream_id: int, payload: bytes = b"", *, end: bool = False, pad: int | None = None
) -> bytes:
    if pad is not None:
        return frame(0, 8 | end, stream_id, bytes((pad,)) + payload + bytes(pad))
    return frame(0, int(end), stream_id, payload)


def literal(name: str, value: str) -> bytes:
    """A field as RFC 7541 figure 9 has it; both shorter than 127 bytes."""
    raw_name, raw_value = name.encode("latin-1"), value.encode("latin-1")
    return b"\0" + bytes((len(raw_name),)) + raw_name + bytes((len(raw_value),)) + raw_value


def block(*fields: str) -> bytes:
    """Fields written as ``name=value``; the first = that is not the first character splits."""
    encoded = b""
    for field in fields:
        name, _, value = field.partition("=")
        encoded += literal(name, value)
    return encoded


def headers(stream_id: int, *fields: str, end: bool = False) -> bytes:
    return frame(1, 4 | end, stream_id, block(*fields))


def connect(stream_id: int, *fields: str, end: bool = False) -> bytes:
    """A CONNECT to a:1 with more fields."""
    return headers(stream_id, ":method=CONNECT", ":authority=a:1", *fields, end=end)


def rst(stream_id: int, code: int) -> bytes:
    return frame(3, 0, stream_id, struct.pack("!I", code))


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(4, 0, 0, b"".join(struct.pack("!HI", *pair) for pair in pairs))


def ping(opaque: bytes, *, ack: bool = False) -> bytes:
    return frame(6, int(ack), 0, opaque)


def goaway(last: int, code: int, debug: bytes = b"") -> bytes:
    return frame(7, 0, 0, struct.pack("!II", last, code) + debug)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(8, 0, stream_id, struct.pack("!I", increment))


class Ear:
    """The receiver of one stream: writes down what it hears."""

    def __init__(self, play: Play, stream: Stream) -> None:
        self.play = play
        self.stream = stream

    def data(self, payload: memoryview) -> None:
        events, head = self.play.events, f"data {self.stream.id} "
        text = bytes(payload).decode("latin-1")
        if not self.play.listens:
            pass
        elif events and events[-1].startswith(head):  # pieces of one frame or of several
            events[-1] += text
        else:
            events.append(head + text)
        if self.play.consumes:
            self.play.connection.consumed(self.stream, len(payload))

    def ended(self) -> None:
        self.play.events.append(f"ended {self.stream.id}")

    def reset(self, code: int) -> None:
        self.play.events.append(f"reset {self.stream.id} {code_name(code)}")

    def writable(self) -> None:
        self.play.events.append(f"writable {self.stream.id}")


class Play:
    """One connection past its greeting, and everything it has said since."""

    def __init__(
        self,
        role: Role,
        local: LocalSettings | None = None,
        *,
        greeted: bool = True,
        chunk: int = 0,
        peer: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.events: list[str] = []
        self.consumes = True
        """Received data is consumed at once."""
        self.listens = True
        """Received data makes events."""
        self.chunk = chunk
        """Bytes given to the core at a time; 0: all at once."""
        self.now = 0.0
        self.connection = Connection(role, local or LocalSettings(), self, clock=lambda: self.now)
        if greeted:
            greeting = PREFACE if role is Role.SERVER else b""
            self.receives(greeting + settings(*peer) + ACK)
            self.sends_anything()
            self.emits("writable")

    # -- the handler -----------------------------------------------------------------------------

    def on_request(self, stream: Stream, request: Request) -> None:
        self.events.append(f"request {stream.id} {request.method} {request.authority}")
        stream.receiver = Ear(self, stream)

    def on_response(self, stream: Stream, response: Response) -> None:
        self.events.append(f"response {stream.id} {response.status}")

    def on_goaway(self, last_stream_id: int, code: int) -> None:
        self.events.append(f"goaway {last_stream_id} {code_name(code)}")

    def on_writable(self) -> None:
        self.events.append("writable")

    def on_pong(self, opaque: bytes) -> None:
        self.events.append(f"pong {opaque.decode('latin-1')}")

    # -- the script ------------------------------------------------------------------------------

    def receives(self, *pieces: bytes) -> Play:
        """The peer's bytes, in chunks of `chunk`."""
        whole = b"".join(pieces)
        step = self.chunk or max(1, len(whole))
        for start in range(0, len(whole), step):
            self.connection.receive(memoryview(whole[start : start + step]))
        return self

    def emits(self, *events: str) -> Play:
        """Exactly these events have come since the last question."""
        assert self.events == list(events)
        self.events.clear()
        return self

    def sends(self, *pieces: bytes) -> Play:
        """Exactly these bytes have been queued since the last question."""
        queued = bytes(self.connection.outbox)
        assert queued == b"".join(pieces)
        self.connection.outbox.clear()
        return self

    def sends_anything(self) -> Play:
        self.connection.outbox.clear()
        return self

    def dies(self, code: ErrorCode, *pieces: bytes) -> H2Error:
        """The peer's bytes end the connection, and the last thing it is told is why."""
        with pytest.raises(H2Error) as raised:
            self.receives(*pieces)
        assert raised.value.code is code
        queued = bytes(self.connection.outbox)
        said = struct.pack("!I", code) + raised.value.text.encode()
        assert queued.endswith(said)
        self.connection.outbox.clear()
        assert self.connection.closed
        assert self.connection.active == 0
        return raised.value

    def opens(self, stream_id: int, *fields: str) -> Stream:
        """Server: the peer opens a tunnel, which is answered with 200."""
        self.receives(connect(stream_id, *fields)).emits(f"request {stream_id} CONNECT a:1")
        stream = self.stream(stream_id)
        self.connection.respond(stream, 200)
        self.sends(frame(1, 4, stream_id, b"\x88"))
        return stream

    def stream(self, stream_id: int) -> Stream:
        found = self.connection.stream(stream_id)
        assert found is not None
        return found

    def done(self) -> None:
        """Nothing was said that the script does not know of."""
        self.emits().sends()
