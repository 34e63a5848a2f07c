"""Errors of the kernel package: what the kernel, the compiler or a pin said no to."""

from __future__ import annotations

from nodenet.errors import NodenetError


class KernelError(NodenetError):
    """Base of the errors this package raises, beside NotPermitted, NotSupported and NotFound."""
