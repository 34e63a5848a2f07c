"""Heads and answers of CONNECT."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity.http_connect import (
    MAX_HEAD_BYTES,
    BadHead,
    ConnectRequest,
    error,
    pull_head,
    refused,
    status_of,
)
from nodenet.konnectivity.server_counts import DialFailure
from nodenet.konnectivity.server_tunnel import Refusal

HEAD = b"CONNECT node1:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_the_target_counts_and_not_the_host() -> None:
    assert pull_head(HEAD) == ConnectRequest("node1:10250", b"")


def test_bytes_behind_the_head_are_the_first_payload() -> None:
    assert pull_head(HEAD + b"\x16\x03\x01") == ConnectRequest("node1:10250", b"\x16\x03\x01")


@given(st.integers(0, len(HEAD) - 1))
def test_a_part_of_a_head_is_waited_for(size: int) -> None:
    assert pull_head(HEAD[:size]) is None


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 405),
        (b"CONNECT  HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a:1\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/2.0\r\n\r\n", 505),
        (b"CONNECT " + b"a" * 600 + b":1 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT \x01a:1 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT \xc3\xa4:1 HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nA: " + b"x" * MAX_HEAD_BYTES, 431),
        (b"CONNECT a:1 HTTP/1.1\r\nA: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    ],
)
def test_what_cannot_be_served_is_answered(head: bytes, status: int) -> None:
    found = pull_head(head)
    assert isinstance(found, BadHead) and found.status == status
    assert found.answer().startswith(b"HTTP/1.1 %d " % status)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_head_or_an_answer(data: bytes) -> None:
    for tail in (b"", b"\r\n\r\n"):
        found = pull_head(data + tail)
        assert found is None or isinstance(found, ConnectRequest | BadHead)


@pytest.mark.parametrize(
    ("refusal", "status", "body"),
    [
        (
            Refusal(DialFailure.NO_AGENT, "No agent available"),
            500,
            b"currently no tunnels available: No agent available",
        ),
        (
            Refusal(DialFailure.BACKEND_DIAL_TIMEOUT, "timed out waiting for backend dial"),
            504,
            b"Backend dial timeout: timed out waiting for backend dial\r\n",
        ),
        (
            Refusal(DialFailure.BACKEND_CLOSE, "gone"),
            502,
            b"Backend context error: gone\r\n",
        ),
        (Refusal(DialFailure.ERROR_RESPONSE, "socket: too many open files"), 503, None),
        (Refusal(DialFailure.ERROR_RESPONSE, "dial tcp 10.0.0.1:80: i/o timeout"), 504, None),
        (Refusal(DialFailure.ERROR_RESPONSE, "connect: connection refused"), 502, None),
        (
            Refusal(DialFailure.TOO_MANY_DIALS, "full"),
            503,
            b"Failed to tunnel dial request: full\r\n",
        ),
    ],
)
def test_refusals_are_upstreams_answers(refusal: Refusal, status: int, body: bytes | None) -> None:
    head, _, found = refused(refusal).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in lines and b"Content-Length: %d" % len(found) in lines
    assert found == (refusal.text.encode() if body is None else body)


def test_the_status_of_an_error_text() -> None:
    assert status_of("Context Deadline Exceeded") == 504
    assert status_of("TIMEOUT, too many open files") == 504
    assert status_of("anything") == 502


def test_an_answer_takes_any_text() -> None:
    assert error(502, "\ud800ü").endswith("?ü".encode())
