"""The packets and the offer that only our own peers understand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity import extension
from nodenet.konnectivity.extension import (
    CREDIT_TYPE,
    EOF_TYPE,
    LARGEST_WINDOW_BYTES,
    LEAST_WINDOW_BYTES,
    Credit,
    Eof,
    Features,
    parse_features,
    pull_extension,
    push_credit,
    push_eof,
)
from nodenet.konnectivity.packets import UnknownPacket, packet_type, pull_packet

IDS = st.integers(min_value=0, max_value=(1 << 63) - 1)


@given(IDS, IDS)
def test_packets_survive_and_are_unknown_types_to_protobuf(connect_id: int, size: int) -> None:
    eof, credit = push_eof(connect_id), push_credit(connect_id, size)
    assert pull_extension(eof) == Eof(connect_id)
    assert pull_extension(credit) == Credit(connect_id, size)
    assert pull_packet(eof) == UnknownPacket(EOF_TYPE)
    assert pull_packet(credit) == UnknownPacket(CREDIT_TYPE)
    assert (packet_type(eof), packet_type(credit)) == (EOF_TYPE, CREDIT_TYPE)


@given(st.binary(max_size=24))
def test_garbage_is_no_extension(message: bytes) -> None:
    assert pull_extension(message) is None or message[:1] == b"\x08"


@given(st.sampled_from([push_eof(7), push_eof(1 << 40), push_credit(7, 300)]), st.data())
def test_what_is_cut_short_or_too_long_is_no_extension(message: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=len(message) - 1))
    assert pull_extension(message[:cut]) is None
    assert pull_extension(message + b"\x00") is None


@pytest.mark.parametrize(
    ("value", "features"),
    [
        (None, Features()),
        ("", Features()),
        ("eof", Features(eof=True)),
        ("eof window=1048576", Features(eof=True, window=1 << 20)),
        ("window=1 later", Features(window=LEAST_WINDOW_BYTES)),
        ("window=9999999999", Features(window=LARGEST_WINDOW_BYTES)),
        ("window=-1 window=x window= EOF", Features()),
    ],
)
def test_offers(value: str | None, features: Features) -> None:
    assert parse_features(value) == features


def test_our_own_offer_survives() -> None:
    assert parse_features(extension.OURS.text()) == extension.OURS
    assert parse_features(extension.NONE.text()) == extension.NONE
