"""Requests and responses as header lists, and the rules they have to keep.

RFC 9113 sections 8.1 to 8.5. A header list that breaks them is malformed: its stream ends with
PROTOCOL_ERROR, the connection goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

#: A header list as decoded: names and values as they were on the wire.
Fields = Sequence[tuple[bytes, bytes]]

#: Fields of one block at most. Tunnels carry a handful; each costs a check and memory.
MAX_FIELDS: Final = 128

#: RFC 9110 section 5.6.2 (token), in lower case only: RFC 9113 section 8.2.1.
_NAME: Final = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+")
#: Names that need no further look: what tunnels are made of.
_USUAL: Final = frozenset((b"baggage", b"forwarded", b"traceparent", b"x-forwarded-network"))
#: RFC 9113 section 8.2.2.
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_BLANKS: Final = b" \t"
_REQUEST_PSEUDO: Final = frozenset((b":method", b":authority", b":scheme", b":path"))
_RESPONSE_PSEUDO: Final = frozenset((b":status",))
_NO_PSEUDO: Final[frozenset[bytes]] = frozenset()


class Malformed(Exception):
    """A header list breaks a rule; stays inside this package."""


class _Message:
    """What requests and responses share: their fields."""

    __slots__ = ("end_stream", "fields")

    def __init__(self, fields: list[tuple[bytes, bytes]], end_stream: bool) -> None:
        self.fields = fields
        """The fields without the pseudo ones, in the order received."""
        self.end_stream = end_stream
        """The peer sends nothing after this."""

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, whose name is in lower case."""
        for key, value in self.fields:
            if key == name:
                return value
        return None

    def get_all(self, name: bytes) -> list[bytes]:
        """All values of a field, in order."""
        return [value for key, value in self.fields if key == name]


class Request(_Message):
    """A request that keeps the rules: a CONNECT, or some other method for the caller to refuse."""

    __slots__ = ("authority", "method")

    def __init__(
        self,
        method: str,
        authority: str,
        fields: list[tuple[bytes, bytes]],
        end_stream: bool = False,
    ) -> None:
        super().__init__(fields, end_stream)
        self.method = method
        self.authority = authority
        """As sent; empty only when the method is not CONNECT."""

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.authority}>"


class Response(_Message):
    """A final response."""

    __slots__ = ("status",)

    def __init__(
        self, status: int, fields: list[tuple[bytes, bytes]], end_stream: bool = False
    ) -> None:
        super().__init__(fields, end_stream)
        self.status = status

    def __repr__(self) -> str:
        return f"<Response {self.status}>"


def request(fields: Fields, end_stream: bool) -> Request:
    """The request of a header list. Raises Malformed."""
    pseudo, rest = _split(fields, _REQUEST_PSEUDO)
    method = pseudo.get(b":method")
    authority = pseudo.get(b":authority", b"")
    if method == b"CONNECT":
        if not authority or len(pseudo) != 2:
            raise Malformed("CONNECT has :method and :authority, and no other pseudo field")
        for name, _ in rest:
            if name == b"content-length":
                raise Malformed("content-length in a CONNECT request")
        return Request("CONNECT", _text(authority), rest, end_stream)
    if not method or not pseudo.get(b":path") or not pseudo.get(b":scheme"):
        raise Malformed("a request has :method, :scheme and :path")
    return Request(_text(method), _text(authority), rest, end_stream)


def response(fields: Fields, end_stream: bool) -> Response:
    """The response of a header list; an interim one (1xx) too. Raises Malformed."""
    pseudo, rest = _split(fields, _RESPONSE_PSEUDO)
    status = pseudo.get(b":status", b"")
    if len(status) != 3 or not status.isdigit() or status < b"100":
        raise Malformed("a response has a :status of three digits")
    if status == b"101":  # RFC 9113 section 8.6
        raise Malformed("status 101 in HTTP/2")
    return Response(int(status), rest, end_stream)


def check_trailers(fields: Fields) -> None:
    """Raises Malformed."""
    _split(fields, _NO_PSEUDO)


def _split(
    fields: Fields, allowed: frozenset[bytes]
) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]]]:
    """Pseudo fields and the others, all checked."""
    if len(fields) > MAX_FIELDS:
        raise Malformed(f"more than {MAX_FIELDS} header fields")
    pseudo: dict[bytes, bytes] = {}
    rest: list[tuple[bytes, bytes]] = []
    for field in fields:
        name, value = field
        # RFC 9113 section 8.2.1; three searches in C cost less than one regular expression
        if b"\n" in value or b"\r" in value or b"\0" in value:
            raise Malformed("NUL, CR or LF in a field value")
        if value and (value[0] in _BLANKS or value[-1] in _BLANKS):
            raise Malformed("a field value begins or ends with a blank")
        if name in _USUAL:
            rest.append(field)
        elif name in allowed:
            if rest:
                raise Malformed("a pseudo field after the others")
            if name in pseudo:
                raise Malformed("a pseudo field twice")
            pseudo[name] = value
        else:
            _check_name(name, value)
            rest.append(field)
    return pseudo, rest


def _check_name(name: bytes, value: bytes) -> None:
    if _NAME.fullmatch(name) is None:
        raise Malformed("a pseudo field that does not belong here, or not a field name")
    if name in _CONNECTION_SPECIFIC:
        raise Malformed("a connection-specific field")
    if name == b"te" and value.lower() != b"trailers":
        raise Malformed("TE other than trailers")


def _text(value: bytes) -> str:
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise Malformed("a pseudo field that is not ASCII") from None
