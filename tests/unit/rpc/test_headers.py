"""Header blocks, as a decoder that is not ours reads them."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.hbone.errors import ErrorCode
from nodenet.hbone.hpack_codec import field
from nodenet.rpc import headers
from nodenet.rpc.errors import PeerViolation
from nodenet.rpc.status import OK, Code, Status, of_http, of_reset

VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(
    lambda n: n not in ("content-type", "te", "connection")
)


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(str(n), str(v)) for n, v in hpack.Decoder().decode(block)]


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6).map(tuple))
def test_a_request_is_what_grpc_asks_for(metadata: headers.Metadata) -> None:
    block = headers.request(
        "/AgentService/Connect",
        authority="server:8091",
        secure=True,
        user_agent="nodenet/1",
        metadata=metadata,
    )
    assert decoded(block) == [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/AgentService/Connect"),
        (":authority", "server:8091"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "nodenet/1"),
        *metadata,
    ]


@given(st.text(max_size=100).filter(lambda t: t.isprintable() or "\n" in t), st.booleans())
def test_a_status_survives_the_trailers(text: str, alone: bool) -> None:
    status = Status(Code.UNAVAILABLE, text.encode("utf-8", "replace").decode())
    _, fields = headers.split(tuple(decoded(headers.trailers(status, alone=alone))))
    assert headers.status_of(fields) == status


def test_a_block_that_came_before_means_what_the_table_says_now() -> None:
    reader = headers.HeaderReader(1 << 16)
    newest = b"\xbe"  # the field that was added last (RFC 7541 section 2.3.3)
    for name, value in ((b"a", b"1"), (b"b", b"2")):
        pair = (name.decode(), value.decode())
        assert reader.read(b"\x40\x01" + name + b"\x01" + value) == (pair,)
        assert reader.read(newest) == reader.read(newest) == (pair,)
    assert reader.read(b"\x20" + headers.answer()) == reader.read(headers.answer())
    with pytest.raises(PeerViolation):
        reader.read(newest)  # the size update has emptied the table


def test_what_a_reader_remembers_is_bounded() -> None:
    reader = headers.HeaderReader(1 << 16)
    for number in range(100):
        reader.read(field(b"n", b"%d" % number))
        reader.read(field(b"n", b"x" * 600))
    assert 0 < len(reader._known) <= 16
    assert all(len(block) <= 512 for block in reader._known)


def test_trailers_alone_are_a_whole_answer() -> None:
    assert decoded(headers.trailers(OK, alone=True)) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "0"),
    ]


@pytest.mark.parametrize(
    "bad", [("Agent", "x"), ("a b", "x"), ("", "x"), ("te", "x"), ("a", "x\n")]
)
def test_metadata_that_cannot_be_sent_is_refused(bad: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        headers.answer((bad,))


@pytest.mark.parametrize("value", [b"a\nb", b"a\rb", b"a\0", b"\x1b[2J", b"\x7f"])
def test_a_control_character_ends_the_connection(value: bytes) -> None:
    """It would be a line of its own in a log, or move the cursor of who reads it."""
    with pytest.raises(PeerViolation, match="control character in a header"):
        headers.HeaderReader(4096).read(field(b"agentid", value))
    assert headers.HeaderReader(4096).read(field(b"a", b"tab\tis fine"))


@given(st.binary(max_size=200))
def test_any_block_is_read_or_ends_the_connection(block: bytes) -> None:
    try:
        headers.split(headers.HeaderReader(4096).read(block))
    except PeerViolation as error:
        assert error.code is not ErrorCode.NO_ERROR


def test_a_list_over_the_limit_ends_the_connection() -> None:
    block = headers.answer((("a", "x" * 5000),))
    with pytest.raises(PeerViolation):
        headers.HeaderReader(4096).read(block)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((), Status(Code.UNKNOWN, "the peer ended the call without a status")),
        ((("grpc-status", "x"),), Status(Code.UNKNOWN, "the peer ended the call without a status")),
        ((("grpc-status", "99"),), Status(Code.UNKNOWN, "")),
        ((("grpc-status", "9" * 50),), Status(Code.UNKNOWN, "")),
        (
            (("grpc-status", "16"), ("grpc-message", "a%20%zz")),
            Status(Code.UNAUTHENTICATED, "a %zz"),
        ),
    ],
)
def test_odd_trailers(fields: headers.Metadata, status: Status) -> None:
    assert headers.status_of(fields) == status


def test_codes_are_named_as_go_names_them() -> None:
    assert [Code.OK.camel, Code.CANCELLED.camel, Code.DEADLINE_EXCEEDED.camel] == [
        "OK",
        "Canceled",
        "DeadlineExceeded",
    ]


def test_resets_and_http_answers_have_a_status() -> None:
    assert of_reset(7).code is Code.UNAVAILABLE
    assert of_reset(8).code is Code.CANCELLED
    assert of_reset(12345).code is Code.INTERNAL
    assert of_http("503").code is Code.UNAVAILABLE
    assert of_http("").code is Code.UNKNOWN
