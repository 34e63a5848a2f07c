"""Header blocks against the general library: what its encoder writes, and what its decoder says."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodenet.hbone import hpack_codec
from nodenet.hbone.hpack_decoder import Decoder, Undecodable

LIMIT = 16384
NAMES = st.sampled_from([b":method", b":authority", b"baggage", b"forwarded", b"x", b"user-agent"])
VALUES = st.one_of(st.sampled_from([b"CONNECT", b"", b"a" * 130]), st.binary(max_size=300))
FIELD = st.tuples(NAMES | st.binary(min_size=1, max_size=20), VALUES, st.booleans())
LISTS = st.lists(st.lists(FIELD, max_size=12), max_size=6)


@given(
    LISTS, st.lists(st.booleans(), min_size=6), st.lists(st.sampled_from([0, 50, 4096]), min_size=6)
)
def test_what_others_encode(
    lists: list[list[tuple[bytes, bytes, bool]]], huffman: list[bool], sizes: list[int]
) -> None:
    """Indexed, never indexed, Huffman-coded or not, the table resized in between."""
    encoder, decoder = hpack.Encoder(), Decoder(LIMIT)
    for fields, coded, size in zip(lists, huffman, sizes, strict=False):
        encoder.header_table_size = size
        block = encoder.encode(fields, huffman=coded)
        assert decoder.decode(block) == [(name, value) for name, value, _ in fields]


REPRESENTATIONS = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [
            b"\x82",
            b"\x88",
            b"\xbe",
            b"\xbf",
            b"\xff\x00",
            b"\xff\x80\x01",
            b"\x20",
            b"\x3f\xe1\x1f",
            b"\x3f\xe2\x1f",
            b"\x40\x01a\x01b",
            b"\x41\x03x:1",
            b"\x00\x01a\x01b",
            b"\x10\x01a\x01b",
            b"\x7f\x00\x01b",
            b"\x0f\x2f\x00",
            b"\x40\x81\x1f\x81\x1f",
            b"\x00\x01a\x7f\x00" + b"v" * 127,
            b"\x00\x01a\x7f\x81\x00" + b"v" * 128,
            b"\x00\x01a\x7f\x80\x80\x80\x80\x80\x00",
        ]
    ),
)


@settings(max_examples=500)
@given(st.lists(st.lists(REPRESENTATIONS, max_size=8).map(b"".join), max_size=4))
def test_any_block_means_what_others_think(blocks: list[bytes]) -> None:
    """Both agree on every block, until one is refused; then the connection would be over."""
    ours, theirs = Decoder(LIMIT), hpack.Decoder(LIMIT)
    for block in blocks:
        try:
            expected = list(theirs.decode(block, raw=True))
        except hpack.HPACKError:
            expected = None
        try:
            decoded = ours.decode(block)
        except Undecodable:
            # stricter in one thing: more than two size updates (RFC 7541 section 4.2)
            assert expected is None or block[:1] >= b"\x20"
            return
        assert decoded == expected
        assert list(ours._entries) == list(theirs.header_table.dynamic_entries)


def test_fields_beyond_the_limit_keep_the_table_right() -> None:
    encoder, decoder = hpack.Encoder(), Decoder(1000)
    large = [(b"large%d" % number, b"x" * 200) for number in range(5)]
    assert decoder.decode(encoder.encode(large)) is None
    assert decoder.decode(encoder.encode(large[:4])) == large[:4]


def test_the_limit_counts_fields_as_the_standard_does() -> None:
    one = hpack_codec.field(b"ab", b"cde")  # 2 + 3 + 32
    assert Decoder(74).decode(one + one) == [(b"ab", b"cde")] * 2
    assert Decoder(73).decode(one + one) is None


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"\x80", "no header field has the index 0"),
        (b"\xbe", "no header field has the index 62"),
        (b"\x7f\x00", "no header field has the index 63"),
        (b"\x00\x05ab", "cut short"),
        (b"\x00", "cut short"),
        (b"\x82\x00\x01a", "cut short"),
        (b"\x00\x01a\x05ab", "cut short"),
        (b"\xff", "cut short"),
        (b"\x3f\xe2\x1f", "4097 bytes, 4096 are allowed"),
        (b"\x82\x20", "resized inside a header block"),
        (b"\x20\x20\x20", "resized inside a header block"),
        (b"\xff\x80\x80\x80\x80\x01", "too large"),
        (b"\x00\x81\xff\x00", "padded with something else"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "end-of-string"),
    ],
)
def test_refused(block: bytes, text: str) -> None:
    with pytest.raises(Undecodable, match=text):
        Decoder(LIMIT).decode(block)


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = Decoder(LIMIT)
    decoder.decode(b"\x40\x01a\x01b")
    assert len(decoder._entries) == 1
    decoder.decode(b"\x40\x01a\x7f\xf1\x1f" + bytes(4208))
    assert not decoder._entries and not decoder._size
