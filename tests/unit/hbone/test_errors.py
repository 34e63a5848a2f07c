"""Errors as an operator reads them."""

from __future__ import annotations

from nodenet.errors import NodenetError
from nodenet.hbone.errors import CannotOpen, ErrorCode, H2Error, NoStream, code_name


def test_names_of_codes() -> None:
    assert code_name(0xB) == "ENHANCE_YOUR_CALM"
    assert code_name(0x2A) == "0x2a"


def test_one_line() -> None:
    error: NodenetError = H2Error(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
    assert error.line() == "HTTP/2 connection ended with PROTOCOL_ERROR: DATA on stream 0"
    refused = CannotOpen(NoStream.LIMIT)
    assert refused.line() == "no new HTTP/2 stream: the peer takes no more streams at a time"
    assert refused.reason is NoStream.LIMIT
