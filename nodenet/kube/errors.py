"""What goes wrong between us and the Kubernetes API."""

from __future__ import annotations

from nodenet.errors import NodenetError


class ApiError(NodenetError):
    """Base of everything `nodenet.kube.client` raises."""


class ApiUnreachable(ApiError):
    """No answer: not connected, cut off, too late."""


class ApiRefused(ApiError):
    """An answer that says no.

    ``status`` is HTTP's; ``reason`` is that of the Status object (``NotFound``, ``Conflict``,
    ``Forbidden``), empty when there was none.
    """

    def __init__(self, what: str, status: int, reason: str, text: str) -> None:
        super().__init__(f"{what}: {status} {reason or 'without a reason'}: {text}".rstrip(": "))
        self.status = status
        self.reason = reason
