"""Header blocks of gRPC: requests, answers, trailers (gRPC: doc/PROTOCOL-HTTP2.md).

We encode without the dynamic table: a block is then the same bytes on every connection, nothing is
kept for the peer, and the few headers of a call are not worth more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from nodenet.hbone import frames
from nodenet.hbone.errors import ErrorCode
from nodenet.hbone.hpack_codec import field
from nodenet.hbone.hpack_codec import status as status_field
from nodenet.hbone.hpack_decoder import Decoder, Undecodable
from nodenet.rpc.errors import PeerViolation
from nodenet.rpc.status import Code, Status

#: Metadata: names in lower case, values as text without line ends.
Metadata = tuple[tuple[str, str], ...]

_STATUS_200: Final = b"\x88"  # indexed field 8 of the static table (RFC 7541 appendix A)
_POST: Final = b"\x83"
_SCHEME: Final = {"http": b"\x86", "https": b"\x87"}
_NAME: Final = re.compile(r"[a-z0-9_.-]+")
#: Bytes that may not stand in grpc-message as they are.
_ESCAPED: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")
#: Nor may these, in any value (RFC 9110 section 5.5).
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
#: Not metadata of the caller: they belong to gRPC or HTTP/2.
_RESERVED: Final = frozenset(("content-type", "te", "connection", "grpc-encoding"))
#: Blocks a connection remembers, and up to which size.
_KNOWN_BLOCKS: Final = 16
_KNOWN_BLOCK_BYTES: Final = 512


def _metadata(metadata: Iterable[tuple[str, str]]) -> bytes:
    out = []
    for name, value in metadata:
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise ValueError(f"metadata name {name!r}")
        if any(ord(c) < 0x20 or ord(c) == 0x7F for c in value):
            raise ValueError(f"control character in the value of metadata {name}")
        out.append(field(name.encode(), value.encode()))
    return b"".join(out)


_CONTENT_TYPE: Final = field(b"content-type", b"application/grpc")
_TE: Final = field(b"te", b"trailers")
_ANSWER: Final = _STATUS_200 + _CONTENT_TYPE


def request(
    path: str, *, authority: str, secure: bool, user_agent: str, metadata: Metadata
) -> bytes:
    """The block that opens a call. ValueError for metadata that cannot be sent."""
    return _opening(path, authority, secure, user_agent) + _metadata(metadata)


@lru_cache(maxsize=16)
def _opening(path: str, authority: str, secure: bool, user_agent: str) -> bytes:
    return b"".join(
        (
            _POST,
            _SCHEME["https" if secure else "http"],
            field(b":path", path.encode()),
            field(b":authority", authority.encode()),
            _CONTENT_TYPE,
            _TE,
            field(b"user-agent", user_agent.encode()),
        )
    )


@lru_cache(maxsize=16)
def answer(metadata: Metadata = ()) -> bytes:
    """The server's initial metadata."""
    return _ANSWER + _metadata(metadata) if metadata else _ANSWER


def trailers(status: Status, *, alone: bool) -> bytes:
    """The end of a call; ``alone`` when no initial metadata went before it."""
    block: bytes = field(b"grpc-status", b"%d" % status.code)
    if status.text:
        block += field(b"grpc-message", _escape(status.text))
    return _ANSWER + block if alone else block


def refusal(http_status: int) -> bytes:
    """An answer to a request that is no gRPC at all."""
    return status_field(http_status)


def frame(stream_id: int, block: bytes, *, end_stream: bool, max_frame: int) -> bytes:
    """A block as one HEADERS frame and as many CONTINUATIONs as it takes."""
    flags = frames.END_STREAM if end_stream else 0
    size = len(block)
    if size <= max_frame:
        head = frames.header(frames.HEADERS, flags | frames.END_HEADERS, stream_id, size)
        return head + block
    out = [frames.header(frames.HEADERS, flags, stream_id, max_frame), block[:max_frame]]
    for at in range(max_frame, size, max_frame):
        part = block[at : at + max_frame]
        last = frames.END_HEADERS if at + max_frame >= size else 0
        out += (frames.header(frames.CONTINUATION, last, stream_id, len(part)), part)
    return b"".join(out)


def _escape(text: str) -> bytes:
    return _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], text.encode("utf-8", "replace"))


class HeaderReader:
    """Decodes the blocks of one connection, in their order."""

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)
        self._known: dict[bytes, Metadata] = {}
        """What blocks mean that have come before: the calls of a peer begin and end alike."""
        self._known_at = 0

    def read(self, block: bytes) -> Metadata:
        """Names and values. PeerViolation: the connection's state is lost with the block."""
        decoder, known = self._decoder, self._known
        before = decoder.changes
        if before == self._known_at:
            found = known.get(block)
            if found is not None:
                return found
        found = self._read(block)
        if decoder.changes == before and len(block) <= _KNOWN_BLOCK_BYTES:
            if before != self._known_at or len(known) == _KNOWN_BLOCKS:
                known.clear()
                self._known_at = before
            known[block] = found
        return found

    def _read(self, block: bytes) -> Metadata:
        try:
            fields = self._decoder.decode(block)
            if fields is None:
                raise PeerViolation(ErrorCode.ENHANCE_YOUR_CALM, "header list over its limit")
            for _, value in fields:
                if _CONTROL.search(value):
                    # it would be a line of its own in a log; RFC 9113 section 8.2.1
                    raise PeerViolation(ErrorCode.PROTOCOL_ERROR, "control character in a header")
            return tuple(
                [(str(name, "ascii"), str(value, "utf-8", "replace")) for name, value in fields]
            )
        except (Undecodable, UnicodeDecodeError) as error:
            raise PeerViolation(ErrorCode.COMPRESSION_ERROR, f"header block: {error}") from error


def split(fields: Metadata) -> tuple[dict[str, str], Metadata]:
    """Pseudo-headers and the rest. PeerViolation for what RFC 9113 section 8.3 forbids."""
    pseudo: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for name, value in fields:
        if name[:1] == ":":
            if rest or name in pseudo:
                raise PeerViolation(ErrorCode.PROTOCOL_ERROR, f"misplaced {name[:40]!r}")
            pseudo[name] = value
        else:
            rest.append((name, value))
    return pseudo, tuple(rest)


def status_of(fields: Metadata) -> Status:
    """The status in trailers; UNKNOWN when there is none that can be read."""
    found = dict(fields)
    text = unquote_to_bytes(found.get("grpc-message", "")).decode("utf-8", "replace")
    raw = found.get("grpc-status", "")
    if not (raw.isascii() and raw.isdigit()):
        return Status(Code.UNKNOWN, text or "the peer ended the call without a status")
    number = int(raw) if len(raw) < 4 else 99
    return Status(Code(number) if number in Code._value2member_map_ else Code.UNKNOWN, text)
