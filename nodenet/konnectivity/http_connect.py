"""The HTTP/1.1 CONNECT frontend's bytes: the request's head, and the answers.

Only the request target counts; kube-apiserver sends ``Host: 127.0.0.1`` whatever it wants. The
answer to a dial is upstream's to the byte, because kube-apiserver takes every byte behind the blank
line of the 200 for an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nodenet.konnectivity.server_counts import DialFailure
from nodenet.konnectivity.server_tunnel import Refusal

#: Of the request line and headers; a CONNECT has some 60.
MAX_HEAD_BYTES: Final = 16 << 10
#: Of a target: a host name has 253.
MAX_TARGET_BYTES: Final = 512

ESTABLISHED: Final = b"HTTP/1.1 200 Connection Established\r\n\r\n"
_REASONS: Final = {
    400: "Bad Request",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A whole head: what to dial, and the bytes behind it, the first payload."""

    address: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class BadHead:
    """A head that cannot be served, and the answer to it."""

    status: int
    text: str

    def answer(self) -> bytes:
        """The bytes to send before closing."""
        return error(self.status, self.text)


def pull_head(data: bytes) -> ConnectRequest | BadHead | None:
    """Reads the head that ``data`` begins with; None when it is not whole yet."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES:
            return BadHead(431, "request header is too large\n")
        return _too_early(data)
    if end > MAX_HEAD_BYTES:
        return BadHead(431, "request header is too large\n")
    line = data[: data.index(b"\r\n")]
    parts = line.split(b" ")
    if len(parts) != 3 or not line.isascii():
        return BadHead(400, "malformed request line\n")
    method, target, version = parts
    if method != b"CONNECT":
        return BadHead(405, "this proxy only supports CONNECT passthrough\n")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        return BadHead(505, "only HTTP/1.1 is spoken here\n")
    if not 0 < len(target) <= MAX_TARGET_BYTES or not target.decode().isprintable():
        return BadHead(400, "malformed request target\n")
    return ConnectRequest(target.decode(), data[end + 4 :])


def _too_early(data: bytes) -> BadHead | None:
    """What is no request line will not become one: TLS on a plain port is the usual mistake."""
    start = data[:1]
    return None if not start or start.isalpha() else BadHead(400, "malformed request line\n")


def error(status: int, text: str) -> bytes:
    """An answer that is an error; the connection ends behind it."""
    body = text.encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        "Connection: close\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def refused(refusal: Refusal) -> bytes:
    """The answer to a dial that came to nothing."""
    text = refusal.text
    match refusal.reason:
        case DialFailure.NO_AGENT:
            return error(500, f"currently no tunnels available: {text}")
        case DialFailure.BACKEND_DIAL_TIMEOUT:
            return error(504, f"Backend dial timeout: {text}\r\n")
        case DialFailure.BACKEND_CLOSE:
            return error(502, f"Backend context error: {text}\r\n")
        case DialFailure.TOO_MANY_DIALS:
            return error(503, f"Failed to tunnel dial request: {text}\r\n")
        case _:
            return error(status_of(text), text)


def status_of(text: str) -> int:
    """The HTTP status for an agent's error text, as upstream maps them."""
    low = text.lower()
    if "timeout" in low or "deadline exceeded" in low:
        return 504
    return 503 if "too many open files" in low else 502
