"""What goes wrong on an HTTP/2 connection, with the code each fault has on the wire."""

from __future__ import annotations

from enum import Enum, IntEnum

from nodenet.errors import NodenetError


class ErrorCode(IntEnum):
    """RFC 9113 section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def code_name(code: int) -> str:
    """``CANCEL``; an unknown code, which a peer may send, as ``0x2a``."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"{code:#x}"


class HboneError(NodenetError):
    """Base of everything this package raises."""


class H2Error(HboneError):
    """The peer broke the protocol or a limit: the connection is over (RFC 9113 section 5.4.1).

    ``code`` is what the peer was told in GOAWAY, ``text`` says what it did.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"HTTP/2 connection ended with {code.name}: {text}")
        self.code = code
        self.text = text


class NoStream(Enum):
    """Why a client cannot open one more stream."""

    GOING_AWAY = "the connection is going away"
    LIMIT = "the peer takes no more streams at a time"
    IDS = "the stream identifiers are used up"


class CannotOpen(HboneError):
    """No stream can be opened on this connection now; another connection is needed.

    ``reason`` says whether waiting would help: only with `NoStream.LIMIT`.
    """

    def __init__(self, reason: NoStream) -> None:
        super().__init__(f"no new HTTP/2 stream: {reason.value}")
        self.reason = reason


class Misuse(HboneError):
    """The caller of the core broke its rules: a fault of this program, not of the peer."""


class BadSetting(HboneError):
    """A local setting is outside what HTTP/2 or this core can do."""

    def __init__(self, name: str, value: int, low: int, high: int) -> None:
        super().__init__(f"HTTP/2 setting {name}={value}: must be {low} to {high}")
        self.name = name
        self.value = value
