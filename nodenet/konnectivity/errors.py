"""What can go wrong in the konnectivity cores."""

from __future__ import annotations

from nodenet.errors import NodenetError


class KonnectivityError(NodenetError):
    """Base of everything `nodenet.konnectivity` raises."""


class MalformedPacket(KonnectivityError):
    """The peer sent bytes that are no packet; its stream cannot be trusted any further.

    ``size`` is the length of the message in bytes.
    """

    def __init__(self, size: int, reason: str) -> None:
        super().__init__(f"malformed packet of {size} bytes: {reason}")
        self.size = size
        self.reason = reason
