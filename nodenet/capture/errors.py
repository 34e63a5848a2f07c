"""Errors of the capture: each names what, where and what to do."""

from __future__ import annotations

from nodenet.errors import NodenetError, NotFound


class CaptureError(NodenetError):
    """Base of the capture's own errors."""


class NotLoaded(NotFound):
    """The instance has no kernel objects."""


class AlreadyEnrolled(CaptureError):
    """The namespace is enrolled under another name."""


class HostNamespace(CaptureError):
    """The target's namespace is the host's."""


class NoAddress(CaptureError):
    """The namespace has no address that could be captured."""


class Busy(CaptureError):
    """Another process changes this instance and does not finish."""
