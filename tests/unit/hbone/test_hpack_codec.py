"""Encoded fields are read by the general library, and mean the same at any time."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.hbone import hpack_codec

FIELDS = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=400)), max_size=8)


@given(FIELDS)
def test_fields(pairs: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder()
    for _ in range(2):  # the first time leaves nothing behind
        assert decoder.decode(hpack_codec.fields(pairs), raw=True) == pairs
        assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 1023, 1024, 16383, 16511, 60000])
def test_lengths(size: int) -> None:
    encoded = hpack_codec.field(b"n", bytes(size))
    assert hpack.Decoder().decode(encoded, raw=True) == [(b"n", bytes(size))]


def test_a_request_is_joined_from_parts() -> None:
    baggage = hpack_codec.field(b"baggage", b"a=b")
    encoded = hpack_codec.connect(b"10.0.0.1:80", baggage + hpack_codec.field(b"forwarded", b"x"))
    assert hpack.Decoder().decode(encoded, raw=True) == [
        (b":method", b"CONNECT"),
        (b":authority", b"10.0.0.1:80"),
        (b"baggage", b"a=b"),
        (b"forwarded", b"x"),
    ]


@pytest.mark.parametrize("code", [200, 204, 400, 401, 403, 404, 500, 503])
def test_status(code: int) -> None:
    encoded = hpack_codec.status(code)
    assert hpack.Decoder().decode(encoded, raw=True) == [(b":status", b"%d" % code)]
    assert len(encoded) == (1 if code in (200, 204, 400, 404, 500) else 5)
