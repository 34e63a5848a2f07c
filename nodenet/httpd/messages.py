"""A request as handlers see it, and the answer they give."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nodenet.endpoint import format_host_port

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Peer:
    """Who asks: over a Unix socket its process (SO_PEERCRED), over TCP its address.

    Nothing of both when it cannot be told: it has gone already.
    """

    host: str | None = None
    port: int | None = None
    pid: int | None = None
    uid: int | None = None
    gid: int | None = None

    @property
    def over_unix(self) -> bool:
        """Whether it came over a Unix socket."""
        return self.uid is not None

    def __str__(self) -> str:
        if self.over_unix:
            return f"pid {self.pid} (uid {self.uid})"
        if self.host is None:
            return "unknown"
        return format_host_port(self.host, self.port or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, its body read."""

    method: str
    path: str
    """Percent-decoded, without the query."""
    query: Mapping[str, str]
    """Of a name given twice the last value."""
    headers: Mapping[str, str]
    """By lower-case name; a repeated header is joined by commas (RFC 9110 section 5.3)."""
    body: bytes = b""
    peer: Peer = Peer()

    def header(self, name: str) -> str:
        """A header's value, empty when it was not sent."""
        return self.headers.get(name.lower(), "")


class HttpError(Exception):
    """A handler's refusal: becomes an answer of that status with the text as its body.

    A NodenetError does so too: UsageError 400, NotFound 404, NotSupported 501, any other one 500.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


Body = bytes | AsyncIterator[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One answer.

    ``body`` may be an asynchronous iterator: it is sent in chunks while it is made, so a large
    answer neither holds up the loop nor has to be in memory as a whole. With ``compress`` it is
    gzipped for whoever accepts that.
    """

    status: int = 200
    content_type: str = TEXT
    body: Body = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    compress: bool = False


def text(body: str, status: int = 200) -> Response:
    """Plain text; end it with a newline."""
    return Response(status=status, body=body.encode())


def html(body: str) -> Response:
    """A page."""
    return Response(content_type=HTML, body=body.encode())


def json(
    value: Any, *, status: int = 200, pretty: bool = False, compress: bool = False
) -> Response:
    """A msgspec-encodable value; ``pretty`` indents by two."""
    import msgspec

    raw = msgspec.json.encode(value)
    if pretty:
        raw = msgspec.json.format(raw, indent=2) + b"\n"
    return Response(status=status, content_type=JSON, body=raw, compress=compress)
