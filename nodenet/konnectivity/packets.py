"""Packets as bytes and as values, and DATA without decoding.

A packet is one gRPC message on `PROXY_METHOD` or `AGENT_METHOD`. Control packets are small and
rare: they are decoded by the protobuf library. DATA is neither: `data_span` reads only the bytes
before the payload and says where the payload is, so that a hop forwards the message as it came.

Receivers look at the type alone. A packet with another payload than its type promises reads as that
type with zero values, and an unknown type is an `UnknownPacket`, as everywhere in protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.proto import packet_pb2 as pb
from nodenet.rpc.call import Buffer

#: gRPC paths. Upstream's files declare no package, so neither has a prefix.
PROXY_METHOD: Final = "/ProxyService/Proxy"
AGENT_METHOD: Final = "/AgentService/Connect"

#: gRPC refuses to receive more than 4 MiB by default, and a Go peer keeps that: what we send stays
#: below it, with room for the packet's own fields.
MAX_PAYLOAD_BYTES: Final = (4 << 20) - 64

_DATA_START: Final = b"\x08\x04\x22"  # type = DATA, then the field of the payload
#: More than `data_prefix` ever makes.
_HEAD_BYTES: Final = 32
_MASK64: Final = (1 << 64) - 1


class PacketType(IntEnum):
    """Packet.type; the names are the values of the metrics' ``packet_type``."""

    DIAL_REQ = 0
    DIAL_RSP = 1
    CLOSE_REQ = 2
    CLOSE_RSP = 3
    DATA = 4
    DIAL_CLS = 5
    DRAIN = 6
    HALF_CLOSE = 100
    WINDOW = 101


class DialRequest(msgspec.Struct, frozen=True, gc=False):
    """Open a connection. ``random`` is the dial id that the answer carries."""

    protocol: str
    address: str
    random: int


class DialResponse(msgspec.Struct, frozen=True, gc=False):
    """The answer to a dial: an empty ``error`` means connected as ``connect_id``."""

    error: str
    connect_id: int
    random: int


class CloseRequest(msgspec.Struct, frozen=True, gc=False):
    """Close the connection."""

    connect_id: int


class CloseResponse(msgspec.Struct, frozen=True, gc=False):
    """The connection is closed; ``error`` is usually empty."""

    error: str
    connect_id: int


class CloseDial(msgspec.Struct, frozen=True, gc=False):
    """The dial is no longer wanted, or no longer possible."""

    random: int


class Drain(msgspec.Struct, frozen=True, gc=False):
    """The agent is about to go: no new dials for it."""


class Data(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a connection."""

    connect_id: int
    payload: bytes


class HalfClose(msgspec.Struct, frozen=True, gc=False):
    """No more DATA of this connection in this direction (extension ``half-close``)."""

    connect_id: int


class Window(msgspec.Struct, frozen=True, gc=False):
    """The sender of DATA may send ``increment`` bytes more (extension ``window``)."""

    connect_id: int
    increment: int


class UnknownPacket(msgspec.Struct, frozen=True, gc=False):
    """A type that this version does not know; to be ignored."""

    type: int


Packet = (
    DialRequest
    | DialResponse
    | CloseRequest
    | CloseResponse
    | CloseDial
    | Drain
    | Data
    | HalfClose
    | Window
    | UnknownPacket
)


class DataSpan(msgspec.Struct, frozen=True, gc=False):
    """Where the payload of a DATA message is: ``message[start:end]``."""

    connect_id: int
    start: int
    end: int


def data_span(message: bytes, size: int | None = None) -> DataSpan | None:
    """The connection id and the payload's place of a DATA message, without copying a byte.

    ``message`` may be its beginning alone where ``size`` is the whole's.

    None for everything that is not DATA as every known encoder writes it (type, then the one
    payload field to the end of the message; inside it the id, then the bytes to its end). Such a
    message is for `pull_packet`, which accepts all that protobuf does.
    """
    if message[:3] != _DATA_START:
        return None
    if size is None:
        size = len(message)
    try:
        at = 3
        length = message[at]
        at += 1
        if length >= 0x80:
            length, at = _more(message, at, length)
        if at + length != size or not length:
            return None
        connect_id = 0
        if message[at] == 0x08:
            connect_id = message[at + 1]
            at += 2
            if connect_id >= 0x80:
                connect_id, at = _more(message, at, connect_id)
                if connect_id > 0x7FFF_FFFF_FFFF_FFFF:
                    return None  # negative: nobody's id
        if at == size:
            return DataSpan(connect_id, at, at)
        if message[at] != 0x1A:
            return None
        length = message[at + 1]
        at += 2
        if length >= 0x80:
            length, at = _more(message, at, length)
    except IndexError:
        return None
    return DataSpan(connect_id, at, at + length) if at + length == size else None


def data_pieces(pieces: Sequence[Buffer]) -> tuple[int, list[Buffer]] | None:
    """As `data_span` for a message in pieces: the connection id, and the payload in pieces.

    None also where the bytes before the payload are not all in the first one.
    """
    first = pieces[0]
    span = data_span(bytes(first[:_HEAD_BYTES]), sum(map(len, pieces)))
    if span is None or span.start > len(first):
        return None
    payload = [memoryview(first)[span.start :], *pieces[1:]]
    return span.connect_id, [piece for piece in payload if piece]


def _more(message: bytes, at: int, value: int) -> tuple[int, int]:
    """The rest of a varint whose first byte was ``value``, and where it ends. IndexError."""
    value &= 0x7F
    shift = 7
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def varint(value: int) -> bytes:
    """``value`` as protobuf's base-128 varint; negative values take ten bytes."""
    value &= _MASK64
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def data_prefix(connect_id: int, size: int) -> bytes:
    """The bytes before a payload of ``size`` bytes: prefix + payload is the DATA message."""
    if size:
        inner = b"\x08" + varint(connect_id) + b"\x1a" + varint(size)
    else:
        inner = b"\x08" + varint(connect_id)
    return _DATA_START + varint(len(inner) + size) + inner


def push_data(connect_id: int, payload: bytes | bytearray | memoryview) -> bytes:
    """A DATA message. Raises ValueError over `MAX_PAYLOAD_BYTES`: the caller splits."""
    size = len(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload of {size} bytes is over {MAX_PAYLOAD_BYTES}")
    return b"".join((data_prefix(connect_id, size), payload))


def packet_type(message: bytes) -> int:
    """The type of a message as every known encoder writes it, -1 when it needs `pull_packet`.

    A guess for metrics, good for messages that were made here.
    """
    if message[:1] == b"\x08" and len(message) > 1 and message[1] < 0x80:
        return message[1]
    return 0 if message[:1] in (b"", b"\x12") else -1


def pull_packet(message: bytes) -> Packet:
    """Decodes one message. MalformedPacket when it is not one."""
    try:
        packet = pb.Packet.FromString(message)
    except DecodeError as error:
        raise MalformedPacket(len(message), str(error) or "not protobuf") from error
    kind: int = packet.type
    # a payload that is not there reads as its zero values
    if kind == PacketType.DATA:
        return Data(packet.data.connectID, packet.data.data)
    if kind == PacketType.DIAL_RSP:
        rsp = packet.dialResponse
        return DialResponse(rsp.error, rsp.connectID, rsp.random)
    if kind == PacketType.CLOSE_REQ:
        return CloseRequest(packet.closeRequest.connectID)
    if kind == PacketType.CLOSE_RSP:
        return CloseResponse(packet.closeResponse.error, packet.closeResponse.connectID)
    if kind == PacketType.DIAL_REQ:
        req = packet.dialRequest
        return DialRequest(req.protocol, req.address, req.random)
    if kind == PacketType.DIAL_CLS:
        return CloseDial(packet.closeDial.random)
    if kind == PacketType.DRAIN:
        return Drain()
    if kind == PacketType.WINDOW:
        return Window(packet.window.connectID, packet.window.increment)
    if kind == PacketType.HALF_CLOSE:
        return HalfClose(packet.halfClose.connectID)
    return UnknownPacket(kind)


def push_packet(packet: Packet) -> bytes:
    """Encodes one packet, byte for byte as protobuf does. An `UnknownPacket` is its bare type.

    By hand: of small messages the library takes five times as long, and a dial is four of them.
    """
    match packet:
        case CloseRequest(connect_id):
            return _message(b"\x08\x02\x2a", _number(b"\x08", connect_id))
        case DialResponse(error, connect_id, random):
            inner = _text(b"\x0a", error) + _number(b"\x10", connect_id)
            return _message(b"\x08\x01\x1a", inner + _number(b"\x18", random))
        case DialRequest(protocol, address, random):
            inner = _text(b"\x0a", protocol) + _text(b"\x12", address)
            return _message(b"\x12", inner + _number(b"\x18", random))
        case CloseResponse(error, connect_id):
            inner = _text(b"\x0a", error) + _number(b"\x10", connect_id)
            return _message(b"\x08\x03\x32", inner)
        case Window(connect_id, increment):
            inner = _number(b"\x08", connect_id) + _number(b"\x10", increment)
            return _message(b"\x08\x65\xaa\x06", inner)
        case HalfClose(connect_id):
            return _message(b"\x08\x64\xa2\x06", _number(b"\x08", connect_id))
        case CloseDial(random):
            return _message(b"\x08\x05\x3a", _number(b"\x08", random))
        case Data(connect_id, payload):
            return push_data(connect_id, payload)
        case Drain():
            return b"\x08\x06\x42\x00"
        case UnknownPacket(kind):
            return _number(b"\x08", kind)


def _message(start: bytes, inner: bytes) -> bytes:
    return start + varint(len(inner)) + inner


def _number(tag: bytes, value: int) -> bytes:
    """A field of an integer; nothing for 0, which is what its absence means."""
    return tag + varint(value) if value else b""


def _text(tag: bytes, value: str) -> bytes:
    if not value:
        return b""
    raw = value.encode("utf-8", "replace")
    return tag + varint(len(raw)) + raw
