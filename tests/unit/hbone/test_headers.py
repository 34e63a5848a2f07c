"""Which header lists are requests and responses, and which are malformed (RFC 9113 8.1-8.5)."""

from __future__ import annotations

import pytest

from nodenet.hbone import headers
from nodenet.hbone.headers import Malformed

Pairs = list[tuple[bytes, bytes]]
METHOD = (b":method", b"CONNECT")
AUTHORITY = (b":authority", b"10.0.0.1:80")
GET: Pairs = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/")]


def test_connect() -> None:
    fields: Pairs = [(b"baggage", b"a=b"), (b"x-any", b"\xff\x01"), (b"baggage", b"c=d")]
    request = headers.request([METHOD, AUTHORITY, *fields], False)
    assert (request.method, request.authority) == ("CONNECT", "10.0.0.1:80")
    assert request.fields == fields
    assert request.get(b"baggage") == b"a=b"
    assert request.get(b"forwarded") is None
    assert request.get_all(b"baggage") == [b"a=b", b"c=d"]
    assert not request.end_stream


def test_other_methods_are_for_the_caller_to_refuse() -> None:
    request = headers.request([*GET, AUTHORITY, (b"content-length", b"5")], True)
    assert (request.method, request.authority, request.end_stream) == ("GET", "10.0.0.1:80", True)
    assert headers.request(GET, False).authority == ""


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [METHOD],
        [AUTHORITY],
        [METHOD, (b":authority", b"")],
        [METHOD, METHOD, AUTHORITY],
        [METHOD, AUTHORITY, AUTHORITY],
        [METHOD, AUTHORITY, (b":scheme", b"https")],
        [METHOD, AUTHORITY, (b":path", b"/")],
        [METHOD, AUTHORITY, (b":protocol", b"websocket")],
        [METHOD, AUTHORITY, (b":status", b"200")],
        [METHOD, (b"baggage", b""), AUTHORITY],
        [METHOD, (b"x", b""), AUTHORITY],
        [METHOD, (b":authority", b"\xc3\xa4:80")],
        GET[:2],
        GET[1:],
        [GET[0], GET[2]],
        [GET[0], GET[1], (b":path", b"")],
        [(b":method", b""), *GET[1:]],
        [*GET, (b":protocol", b"websocket")],
    ],
)
def test_malformed_pseudo_fields(fields: Pairs) -> None:
    with pytest.raises(Malformed):
        headers.request(fields, False)


@pytest.mark.parametrize(
    "field",
    [
        (b"Baggage", b"a"),
        (b"", b"a"),
        (b"a b", b"a"),
        (b"a:b", b"a"),
        (b"a\0", b"a"),
        (b"\xe4", b"a"),
        (b"baggage", b"a\nb"),
        (b"baggage", b"a\rb"),
        (b"baggage", b"a\0b"),
        (b"baggage", b" a"),
        (b"baggage", b"a "),
        (b"baggage", b"\ta"),
        (b"baggage", b"a\t"),
        (b"x", b"a\n"),
        (b"connection", b"close"),
        (b"proxy-connection", b"close"),
        (b"keep-alive", b"5"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"te", b"gzip"),
        (b"content-length", b"0"),
    ],
)
def test_malformed_fields(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(Malformed):
        headers.request([METHOD, AUTHORITY, field], False)


@pytest.mark.parametrize(
    "field",
    [
        (b"te", b"trailers"),
        (b"x", b""),
        (b"x", b"a b\tc"),
        (b"x!#$%&'*+-.^_`|~09az", b"\x80\xff"),
        (b"host", b"a"),
    ],
)
def test_fields_that_are_fine(field: tuple[bytes, bytes]) -> None:
    assert headers.request([METHOD, AUTHORITY, field], False).fields == [field]


def test_the_number_of_fields_is_limited() -> None:
    few = [METHOD, AUTHORITY, *[(b"x", b"")] * (headers.MAX_FIELDS - 2)]
    assert len(headers.request(few, False).fields) == headers.MAX_FIELDS - 2
    with pytest.raises(Malformed):
        headers.request([*few, (b"x", b"")], False)


def test_response() -> None:
    response = headers.response([(b":status", b"503"), (b"content-length", b"5")], True)
    assert (response.status, response.end_stream) == (503, True)
    assert response.get(b"content-length") == b"5"
    assert headers.response([(b":status", b"103")], False).status == 103


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b"x", b"")],
        [(b":status", b"")],
        [(b":status", b"20")],
        [(b":status", b"2000")],
        [(b":status", b"+20")],
        [(b":status", b"2 0")],
        [(b":status", b"099")],
        [(b":status", b"101")],
        [(b":status", b"200"), (b":status", b"200")],
        [(b":status", b"200"), (b":method", b"GET")],
        [(b"x", b""), (b":status", b"200")],
        [(b":status", b"200"), (b"connection", b"close")],
    ],
)
def test_malformed_responses(fields: Pairs) -> None:
    with pytest.raises(Malformed):
        headers.response(fields, False)


def test_trailers() -> None:
    headers.check_trailers([(b"x", b"y")])
    with pytest.raises(Malformed):
        headers.check_trailers([(b":status", b"200")])
