"""The Huffman code against the general library's table and encoder."""

from __future__ import annotations

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from nodenet.hbone import huffman

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def test_the_codes_are_those_of_the_standard() -> None:
    ours = huffman.codes()
    assert {symbol: ours[symbol] for symbol in sorted(ours)} == {
        symbol: (REQUEST_CODES[symbol], REQUEST_CODES_LENGTH[symbol]) for symbol in range(256)
    }


@pytest.mark.parametrize(
    ("text", "coded"),
    [  # RFC 7541 appendix C
        (b"", ""),
        (b"www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
        (b"no-cache", "a8eb10649cbf"),
        (b"private", "aec3771a4b"),
        (b"Mon, 21 Oct 2013 20:13:21 GMT", "d07abe941054d444a8200595040b8166e082a62d1bff"),
        (b"302", "6402"),
    ],
)
def test_examples(text: bytes, coded: str) -> None:
    assert huffman.decode(bytes.fromhex(coded)) == text


@given(st.binary(max_size=300))
def test_what_others_encode(text: bytes) -> None:
    assert huffman.decode(ENCODER.encode(text)) == text


@given(st.binary(max_size=40))
def test_one_string_has_one_coding(coded: bytes) -> None:
    try:
        text = huffman.decode(coded)
    except huffman.InvalidHuffman:
        return
    assert ENCODER.encode(text) == coded


@pytest.mark.parametrize(
    "coded",
    [
        "ff",  # eight bits of padding
        "ffffffff",  # the end-of-string symbol
        "a8eb10649cbfffff",
        "18",  # padded with zeros
        "1b",
    ],
)
def test_invalid(coded: str) -> None:
    with pytest.raises(huffman.InvalidHuffman):
        huffman.decode(bytes.fromhex(coded))


def test_the_table_stays_small() -> None:
    for byte in range(256):
        for other in (0x00, 0x55, 0xFE):
            try:
                huffman.decode(bytes((byte, other, byte, other)))
            except huffman.InvalidHuffman:
                continue
    assert len(huffman._STEPS) == 256 * 256
