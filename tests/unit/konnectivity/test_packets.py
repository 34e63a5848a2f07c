"""Packets: equal to protobuf's own opinion, DATA spans included, whatever the bytes."""

from __future__ import annotations

import itertools

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.packets import (
    MAX_PAYLOAD_BYTES,
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DataSpan,
    DialRequest,
    DialResponse,
    Drain,
    HalfClose,
    Packet,
    PacketType,
    UnknownPacket,
    Window,
    data_pieces,
    data_prefix,
    data_span,
    packet_type,
    pull_packet,
    push_data,
    push_packet,
    varint,
)
from nodenet.konnectivity.proto import packet_pb2 as pb

INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=40)
PACKETS: st.SearchStrategy[Packet] = st.one_of(
    st.builds(DialRequest, protocol=TEXT, address=TEXT, random=INT64),
    st.builds(DialResponse, error=TEXT, connect_id=INT64, random=INT64),
    st.builds(CloseRequest, connect_id=INT64),
    st.builds(CloseResponse, error=TEXT, connect_id=INT64),
    st.builds(CloseDial, random=INT64),
    st.builds(Drain),
    st.builds(Data, connect_id=INT64, payload=st.binary(max_size=300)),
    st.builds(HalfClose, connect_id=INT64),
    st.builds(Window, connect_id=INT64, increment=INT64),
    st.builds(UnknownPacket, type=st.integers(200, 2**31 - 1)),
)


@given(PACKETS)
def test_every_packet_survives_the_wire(packet: Packet) -> None:
    assert pull_packet(push_packet(packet)) == packet


@given(PACKETS)
def test_every_packet_is_encoded_as_protobuf_encodes_it(packet: Packet) -> None:
    message = push_packet(packet)
    if isinstance(packet, Data) and not (packet.connect_id and packet.payload):
        return  # its prefix is always whole, which protobuf would shorten
    assert pb.Packet.FromString(message).SerializeToString() == message


@given(PACKETS)
def test_the_type_is_seen_without_decoding(packet: Packet) -> None:
    message = push_packet(packet)
    seen = packet_type(message)
    assert seen == pb.Packet.FromString(message).type or (
        seen == -1 and isinstance(packet, UnknownPacket)
    )


@given(IDS, st.binary(max_size=70_000))
def test_data_is_encoded_as_protobuf_encodes_it(connect_id: int, payload: bytes) -> None:
    wanted = pb.Packet(type=pb.DATA, data=pb.Data(connectID=connect_id, data=payload))
    decoded = pb.Packet.FromString(push_data(connect_id, payload))
    assert decoded == wanted
    if connect_id:
        assert push_data(connect_id, payload) == wanted.SerializeToString()


@given(IDS, st.binary(max_size=300), st.lists(st.integers(0, 320), max_size=4))
def test_data_in_pieces_is_the_same_data(connect_id: int, payload: bytes, cuts: list[int]) -> None:
    message = push_data(connect_id, payload)
    at = [0, *sorted(min(cut, len(message)) for cut in cuts), len(message)]
    pieces = [message[a:b] for a, b in itertools.pairwise(at)]
    found = data_pieces(pieces)
    span = data_span(message)
    assert span is not None
    if len(pieces[0]) < span.start:
        assert found is None  # for who joins them
    else:
        assert found is not None and all(found[1])
        assert (found[0], b"".join(found[1])) == (connect_id, payload)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_in_pieces_are_data_only_where_they_are_together(raw: bytes, cut: int) -> None:
    for message in (raw, b"\x08\x04\x22" + raw):
        found = data_pieces([message[:cut], message[cut:]])
        span = data_span(message)
        if found is not None:
            assert span is not None
            payload = message[span.start : span.end]
            assert (found[0], b"".join(found[1])) == (span.connect_id, payload)


@given(IDS, st.binary(max_size=70_000))
def test_the_span_of_data_is_the_payload(connect_id: int, payload: bytes) -> None:
    for message in (
        push_data(connect_id, payload),
        pb.Packet(
            type=pb.DATA, data=pb.Data(connectID=connect_id, data=payload)
        ).SerializeToString(),
    ):
        span = data_span(message)
        if span is None:  # only an empty inner message is left to the slow way
            assert not payload and not connect_id
            continue
        assert span.connect_id == connect_id
        assert message[span.start : span.end] == payload


@given(st.one_of(st.binary(max_size=64), st.builds(lambda b: b"\x08\x04\x22" + b, st.binary())))
def test_any_bytes_are_a_packet_or_malformed_and_the_span_agrees(message: bytes) -> None:
    try:
        packet = pull_packet(message)
    except MalformedPacket as error:
        assert error.size == len(message)
        with pytest.raises(DecodeError):
            pb.Packet.FromString(message)
        return
    span = data_span(message)
    if span is not None:
        assert packet == Data(span.connect_id, message[span.start : span.end])


@given(PACKETS, st.data())
def test_a_truncated_packet_never_raises_anything_else(packet: Packet, data: st.DataObject) -> None:
    message = push_packet(packet)
    cut = message[: data.draw(st.integers(0, len(message)))]
    try:
        pull_packet(cut)
    except MalformedPacket:
        pass
    span = data_span(cut)
    assert span is None or span.end == len(cut)


def test_an_empty_message_is_a_dial_request_of_nothing() -> None:
    assert pull_packet(b"") == DialRequest("", "", 0)


@pytest.mark.parametrize(
    ("kind", "zero"),
    [
        (PacketType.DIAL_REQ, DialRequest("", "", 0)),
        (PacketType.DIAL_RSP, DialResponse("", 0, 0)),
        (PacketType.CLOSE_REQ, CloseRequest(0)),
        (PacketType.CLOSE_RSP, CloseResponse("", 0)),
        (PacketType.DATA, Data(0, b"")),
        (PacketType.DIAL_CLS, CloseDial(0)),
        (PacketType.DRAIN, Drain()),
        (PacketType.HALF_CLOSE, HalfClose(0)),
        (PacketType.WINDOW, Window(0, 0)),
    ],
)
def test_a_payload_of_another_type_reads_as_zero_values(kind: PacketType, zero: Packet) -> None:
    assert pull_packet(pb.Packet(type=int(kind)).SerializeToString()) == zero  # type: ignore[arg-type]
    other = pb.Packet(
        type=int(kind),  # type: ignore[arg-type]  # the stubs want their own enum class
        closeDial=pb.CloseDial(random=7),
    )
    if kind is not PacketType.DIAL_CLS:
        assert pull_packet(other.SerializeToString()) == zero


def test_a_frame_that_claims_a_gibibyte_is_not_believed() -> None:
    for claim in (1 << 30, 1 << 34, (1 << 63) - 1):
        message = b"\x08\x04\x22" + varint(claim) + b"\x08\x01\x1a" + varint(claim) + b"abc"
        assert data_span(message) is None
        with pytest.raises(MalformedPacket):
            pull_packet(message)


def test_a_varint_without_end_is_malformed() -> None:
    message = b"\x08\x04\x22" + b"\xff" * 11
    assert data_span(message) is None
    with pytest.raises(MalformedPacket):
        pull_packet(message)


def test_data_with_the_error_field_takes_the_slow_way() -> None:
    odd = pb.Packet(type=pb.DATA, data=pb.Data(connectID=4, error="x", data=b"abc"))
    message = odd.SerializeToString()
    assert data_span(message) is None
    assert pull_packet(message) == Data(4, b"abc")


def test_a_payload_over_the_limit_is_the_callers_mistake() -> None:
    assert len(push_data(1, bytes(MAX_PAYLOAD_BYTES))) <= 4 << 20
    with pytest.raises(ValueError, match="over"):
        push_data(1, bytes(MAX_PAYLOAD_BYTES + 1))


def test_the_prefix_and_the_payload_are_the_message() -> None:
    payload = bytes(1000)
    message = data_prefix(300, 1000) + payload
    assert message == push_data(300, payload)
    assert data_span(message) == DataSpan(300, len(message) - 1000, len(message))
