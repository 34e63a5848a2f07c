"""The forwarded header as ztunnel writes and reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.hbone.forwarded import MAX_LENGTH, format_forwarded, parse_forwarded_host


@pytest.mark.parametrize(
    ("client", "host", "header"),
    [
        ("10.0.0.1:80", None, b'for="10.0.0.1:80"'),
        ("10.0.0.1:80", "db.shop.svc", b'for="10.0.0.1:80";host=db.shop.svc'),
        ("[fd00::1]:80", "db.shop.svc", b'for="[fd00::1]:80";host=db.shop.svc'),
        ("10.0.0.1:80", "*.example.com", b'for="10.0.0.1:80";host=*.example.com'),
        ("10.0.0.1:80", "a;for=b", b'for="10.0.0.1:80"'),
        ("10.0.0.1:80", "a\r\nb", b'for="10.0.0.1:80"'),
        ("10.0.0.1:80", "", b'for="10.0.0.1:80"'),
    ],
)
def test_format(client: str, host: str | None, header: bytes) -> None:
    assert format_forwarded(client, host) == header


@pytest.mark.parametrize(
    ("header", "host"),
    [
        (None, None),
        (b"", None),
        (b'for="10.0.0.1:80"', None),
        (b'for="10.0.0.1:80";host=db.shop.svc', "db.shop.svc"),
        (b"host=a;host=b", "a"),
        (b' for=x ;\thost="a b" ', "a b"),
        (b'host="a', '"a'),
        (b'host=a"', 'a"'),
        (b'host="', '"'),
        (b'host=""a""', '"a"'),
        (b"host=", None),
        (b'host=""', None),
        (b"host=;host=b", None),
        (b"HOST=a", None),
        (b"xhost=a", None),
        (b"host=\xc3\xa9", None),
        (b"host=" + b"a" * MAX_LENGTH, None),
    ],
)
def test_parse(header: bytes | None, host: str | None) -> None:
    assert parse_forwarded_host(header) == host


@given(st.from_regex(r"[A-Za-z0-9*._-]{1,253}", fullmatch=True))
def test_both_ways(host: str) -> None:
    assert parse_forwarded_host(format_forwarded("[fd00::1]:80", host)) == host


@given(st.text())
def test_any_host_can_be_given(host: str) -> None:
    assert parse_forwarded_host(format_forwarded("10.0.0.1:80", host)) in (host, None)


@given(st.binary() | st.lists(st.sampled_from([b"host=", b'"', b";", b" ", b"a"])).map(b"".join))
def test_parsing_never_fails(header: bytes) -> None:
    assert parse_forwarded_host(header) != ""
