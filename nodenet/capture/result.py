"""What enrolling and un-enrolling report back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nodenet.capture.records import PodRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolResult:
    """The outcome of one enrolment."""

    record: PodRecord
    outcome: Literal["enrolled", "changed", "unchanged"]
    existing: int
    """Established TCP connections of the pod that are older than the enrolment."""
    existing_reset: int
    """How many of them were reset."""
    listeners: tuple[int, ...]
    """The proxy's ports that were listening when the pod went live."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnenrolResult:
    """The outcome of one un-enrolment."""

    name: str
    netns_cookie: int
    existing: int
    """Connections of the pod's proxy alive when the pod was taken out, each leg for itself."""
    existing_reset: int
    routes_kept: bool
    """Policy routes stay while proxied inbound connections still need them."""
