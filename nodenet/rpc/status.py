"""How a call ended (gRPC: doc/statuscodes.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nodenet.hbone.errors import ErrorCode, code_name


class Code(IntEnum):
    """The value of ``grpc-status``."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def camel(self) -> str:
        """As Go prints it and upstream's metrics label it: ``DeadlineExceeded``, ``OK``."""
        if self is Code.OK:
            return "OK"
        if self is Code.CANCELLED:
            return "Canceled"
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class Status:
    """A code and the text beside it."""

    code: Code
    text: str = ""

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}" if self.text else self.code.name


OK = Status(Code.OK)


def of_reset(code: int) -> Status:
    """What a RST_STREAM means (gRPC: doc/PROTOCOL-HTTP2.md, errors)."""
    text = f"stream reset by the peer: {code_name(code)}"
    match code:
        case ErrorCode.REFUSED_STREAM:
            return Status(Code.UNAVAILABLE, text)
        case ErrorCode.CANCEL:
            return Status(Code.CANCELLED, text)
        case ErrorCode.ENHANCE_YOUR_CALM:
            return Status(Code.RESOURCE_EXHAUSTED, text)
        case ErrorCode.INADEQUATE_SECURITY:
            return Status(Code.PERMISSION_DENIED, text)
        case _:
            return Status(Code.INTERNAL, text)


def of_http(status: str) -> Status:
    """What an answer with another HTTP status than 200 means.

    Source: gRPC: doc/http-grpc-status-mapping.md.
    """
    code = {
        "400": Code.INTERNAL,
        "401": Code.UNAUTHENTICATED,
        "403": Code.PERMISSION_DENIED,
        "404": Code.UNIMPLEMENTED,
        "429": Code.UNAVAILABLE,
        "502": Code.UNAVAILABLE,
        "503": Code.UNAVAILABLE,
        "504": Code.UNAVAILABLE,
    }.get(status, Code.UNKNOWN)
    return Status(code, f"HTTP status {status or 'missing'} instead of 200")
