"""The id that the logs of both proxies share."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.hbone.traceparent import TraceParent, new_traceparent, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-00".encode()


def test_form() -> None:
    assert TraceParent(TRACE, SPAN).header() == VALID
    assert parse_traceparent(VALID) == TraceParent(TRACE, SPAN)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01".encode()) == TraceParent(TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"x" * 55,
        VALID[:-1],
        VALID + b"0",
        VALID.upper(),
        VALID.replace(b"-", b"_"),
        VALID + b"\n",
        b"\xff" * 55,
    ],
)
def test_anything_else_is_none(header: bytes | None) -> None:
    assert parse_traceparent(header) is None


@given(st.integers())
def test_new_ids_have_the_form(seed: int) -> None:
    rng = Random(seed)
    made = new_traceparent(rng)
    assert parse_traceparent(made.header()) == made
    assert len(made.header()) == 55
    assert new_traceparent(rng) != made


def test_zero_is_no_id() -> None:
    class Zeros(Random):
        def getrandbits(self, k: int, /) -> int:
            return 0

    assert new_traceparent(Zeros()) == TraceParent("0" * 31 + "1", "0" * 15 + "1")


@given(st.binary(min_size=55, max_size=55))
def test_parsing_never_fails(header: bytes) -> None:
    assert parse_traceparent(header) is None or len(header) == 55
