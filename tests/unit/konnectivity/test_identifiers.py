"""The query in which an agent names what it serves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity.identifiers import (
    NO_IDENTIFIERS,
    BadIdentifiers,
    Identifiers,
    host_of,
    normal_host,
    parse_identifiers,
)


def test_every_key_is_read() -> None:
    text = (
        "host=localhost&host=node1.example&cidr=10.0.0.0%2F8&ipv4=1.2.3.4&ipv6=fd00%3A%3A1"
        "&default-route=true&uid=7&colour=red"
    )
    assert parse_identifiers(text) == Identifiers(
        ipv4=("1.2.3.4",),
        ipv6=("fd00::1",),
        host=("localhost", "node1.example"),
        cidr=("10.0.0.0/8",),
        default_route=True,
        unknown=("colour",),
    )


@pytest.mark.parametrize("text", ["", "&", "&&"])
def test_nothing_is_nothing(text: str) -> None:
    assert parse_identifiers(text) == NO_IDENTIFIERS


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("default-route=1", True),
        ("default-route=True", True),
        ("default-route=yes", False),
        ("default-route=false&default-route=true", False),
        ("default-route", False),
    ],
)
def test_default_route_is_gos_bool_and_the_first_counts(text: str, wanted: bool) -> None:
    assert parse_identifiers(text).default_route is wanted


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("host=a;host=b", "fail to parse url encoded string: invalid semicolon separator in query"),
        ("host=%zz", 'fail to parse url encoded string: invalid URL escape "%zz"'),
        ("host=%", 'fail to parse url encoded string: invalid URL escape "%"'),
    ],
)
def test_what_is_no_query_is_refused_in_upstreams_words(text: str, error: str) -> None:
    with pytest.raises(BadIdentifiers) as caught:
        parse_identifiers(text)
    assert caught.value.message == error


def test_no_identifier_makes_a_line_of_a_log() -> None:
    found = parse_identifiers("host=a%0aAgent+connected&ipv4=%1b[2J")
    assert found.host == ("a\nAgent connected",), "what is compared is as it was sent"
    assert found.text() == "host=a\\nAgent connected,ipv4=\\x1b[2J"


def test_a_flood_of_identifiers_has_an_end() -> None:
    with pytest.raises(BadIdentifiers):
        parse_identifiers("host=a&" * 5000)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_identifiers(text).destinations()
    except BadIdentifiers:
        pass


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("node1.example:10250", "node1.example"),
        ("node1", "node1"),
        ("[fd00::1]:80", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("", ""),
    ],
)
def test_the_port_is_taken_off(address: str, host: str) -> None:
    assert host_of(address) == host


def test_one_spelling_a_host() -> None:
    assert normal_host("Node1.Example.") == "node1.example"
    assert normal_host("FD00:0:0::1") == "fd00::1"
    assert Identifiers(ipv6=("fd00::1", "FD00::1")).destinations() == ("fd00::1",)
