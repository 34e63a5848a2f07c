"""Frame layout of HTTP/2 (RFC 9113 sections 4.1 and 6): numbers, and bytes of what is sent.

A frame header is read as three numbers, ``head, flags, stream_id``, where ``head`` holds the
length in its upper 24 bits and the type in its lower 8: one unpack instead of four.
"""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
#: length << 8 | type, flags, stream id (with the reserved bit, which is ignored on receipt).
HEADER: Final = struct.Struct("!IBI")
STREAM_ID_MASK: Final = 0x7FFF_FFFF
MAX_STREAM_ID: Final = 0x7FFF_FFFF
#: Largest flow-control window (section 6.9.1).
MAX_WINDOW: Final = 0x7FFF_FFFF
#: What both sides have to expect before SETTINGS say otherwise (section 6.5.2, 6.9.2).
DEFAULT_WINDOW: Final = 65_535
DEFAULT_MAX_FRAME: Final = 16_384
LARGEST_MAX_FRAME: Final = (1 << 24) - 1

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9
KNOWN_TYPES: Final = 10

NAMES: Final = (
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
)

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

PING_BYTES: Final = 8
SETTING: Final = struct.Struct("!HI")
U32: Final = struct.Struct("!I")
TWO_U32: Final = struct.Struct("!II")

_WITH_U32: Final = struct.Struct("!IBII")
_WITH_TWO_U32: Final = struct.Struct("!IBIII")
_WITH_8: Final = struct.Struct("!IBI8s")
_FOUR: Final = 4 << 8
_EIGHT: Final = 8 << 8

SETTINGS_ACK: Final = HEADER.pack(SETTINGS, ACK, 0)


def header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """The 9 bytes before any payload."""
    return HEADER.pack(length << 8 | kind, flags, stream_id)


def window_update(stream_id: int, increment: int) -> bytes:
    """``stream_id`` 0 is the connection; the increment is 1 to 2**31-1 bytes."""
    return _WITH_U32.pack(_FOUR | WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: int) -> bytes:
    """Ends one stream."""
    return _WITH_U32.pack(_FOUR | RST_STREAM, 0, stream_id, code)


def ping(opaque: bytes, *, ack: bool = False) -> bytes:
    """``opaque`` is exactly 8 bytes."""
    return _WITH_8.pack(_EIGHT | PING, ACK if ack else 0, 0, opaque)


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Ends the connection, or with NO_ERROR the opening of streams."""
    length = 8 + len(debug)
    return _WITH_TWO_U32.pack(length << 8 | GOAWAY, 0, 0, last_stream_id, code) + debug


def settings(pairs: list[tuple[int, int]]) -> bytes:
    """A SETTINGS frame of (identifier, value) pairs."""
    payload = b"".join(SETTING.pack(*pair) for pair in pairs)
    return header(SETTINGS, 0, 0, len(payload)) + payload
