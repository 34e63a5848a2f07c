"""What can go wrong on a gRPC connection."""

from __future__ import annotations

from nodenet.errors import NodenetError
from nodenet.hbone.errors import ErrorCode


class RpcError(NodenetError):
    """Base of everything `nodenet.rpc` raises."""


class PeerViolation(RpcError):
    """The peer broke HTTP/2 or gRPC; the whole connection ends with ``code`` in its GOAWAY."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{message} ({code.name})")
        self.code = code


class CallOver(RpcError):
    """Something was asked of a call, or of a connection, that has ended already."""
