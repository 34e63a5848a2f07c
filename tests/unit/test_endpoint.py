"""ENDPOINT: the same text in and out, and errors that say what to write."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet import abi
from nodenet.endpoint import (
    Endpoint,
    format_endpoint,
    format_host_port,
    format_raw_endpoint,
    parse_endpoint,
    parse_port,
)
from nodenet.errors import UsageError

V4, V6 = ipaddress.IPv4Address, ipaddress.IPv6Address


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (V4("10.0.0.1"), "10.0.0.1:80"),
        (V6("fd00::1"), "[fd00::1]:80"),
        (V6("::ffff:10.0.0.1"), "10.0.0.1:80"),
        (V6("::"), "[::]:80"),
    ],
)
def test_format(address: abi.IPAddress, text: str) -> None:
    assert format_endpoint(address, 80) == text
    assert format_raw_endpoint(abi.pack_ip(address), 80) == text


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("10.0.0.1", "10.0.0.1:80"),
        ("fd00::1", "[fd00::1]:80"),
        ("::ffff:10.0.0.1", "10.0.0.1:80"),
        ("::ffff:0:1", "[::ffff:0:1]:80"),
        ("fe80::1%eth0", "[fe80::1%eth0]:80"),
        ("svc.ns", "svc.ns:80"),
    ],
)
def test_format_of_text(host: str, text: str) -> None:
    assert format_host_port(host, 80) == text


@given(st.ip_addresses(), st.integers(1, 65535))
def test_what_is_printed_can_be_read(address: abi.IPAddress, port: int) -> None:
    text = format_endpoint(address, port)
    read = parse_endpoint(text)
    assert str(read) == text
    assert read.port == port
    assert read.address == (getattr(address, "ipv4_mapped", None) or address)
    assert parse_endpoint(format_raw_endpoint(abi.pack_ip(address), port)) == read


def test_names() -> None:
    assert parse_endpoint("db.shop:5432") == Endpoint(name="db.shop", port=5432)
    assert str(parse_endpoint("shop/cart:80")) == "shop/cart:80"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.96.0.20", "10.96.0.20 needs a port; write 10.96.0.20:5432"),
        ("shop/db", "shop/db needs a port; write shop/db:5432"),
        ("fd42:1::7", "fd42:1::7 needs a port; write [fd42:1::7]:5432"),
        ("fd00::1:80", "fd00::1:80 needs a port; write [fd00::1:80]:5432"),
        ("[fd42:1::7]", "[fd42:1::7] needs a port; write [fd42:1::7]:5432"),
        ("[fd42:1::7", "[fd42:1::7 needs a port; write [fd42:1::7]:5432"),
        ("1:2:3:4:5:6:7:8:80",
         "1:2:3:4:5:6:7:8:80 is not an endpoint; an IPv6 one is written [1:2:3:4:5:6:7:8]:80"),
        ("[nonsense]:80", "nonsense is not an IPv6 address in [nonsense]:80"),
        (":80", ":80 has no address; write 10.0.0.1:80"),
        ("10.0.0.256:80", "10.0.0.256 is not an IPv4 address in 10.0.0.256:80"),
        ("10.0.1:80", "10.0.1 is not an IPv4 address in 10.0.1:80"),
        ("10.0.0.1:", "port '' is not a number in 10.0.0.1:"),
        ("10.0.0.1:http", "port 'http' is not a number in 10.0.0.1:http"),
        ("10.0.0.1:65536", "port 65536 out of range 1-65535 in 10.0.0.1:65536"),
        ("[fd00::1]:0", "port 0 out of range 1-65535 in [fd00::1]:0"),
    ],
)  # fmt: skip
def test_errors(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text)
    assert caught.value.line() == message


def test_an_error_names_where_the_port_stood() -> None:
    with pytest.raises(UsageError) as caught:
        parse_port("65536", "--exclude-port in:65536")
    assert caught.value.line() == "port 65536 out of range 1-65535 in --exclude-port in:65536"
    with pytest.raises(UsageError, match="not a number"):
        parse_port("٣", "x")  # a digit, but no ASCII one


@given(st.text(max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        parse_endpoint(text)
    except UsageError as error:
        assert error.exit_code == 2
