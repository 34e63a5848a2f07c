"""One identity in the certificate store: what is known of it, who waits for it, how it is shown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.clock import Timer
from nodenet.identity.errors import CertificateUnavailable
from nodenet.identity.spiffe import Identity

logger = logging.getLogger(__name__)

#: What a waiter is called with.
Answer = WorkloadCertificate | CertificateUnavailable
Callback = Callable[[Answer], None]


class State(Enum):
    """What the dump calls an entry's state."""

    AVAILABLE = "Available"
    INITIALIZING = "Initializing"
    UNAVAILABLE = "Unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySnapshot:
    """One identity as it is now. Times are Unix time."""

    identity: Identity
    state: State
    certificate: WorkloadCertificate | None
    """The one that is given out; None unless the state is available."""
    error: str | None
    """Why the last request failed; None when it did not."""
    attempts: int
    """Failures since the last success."""
    next_request: float | None
    """When the CA is asked again; None when it is being asked or waits for its turn."""
    waiters: int

    @property
    def state_text(self) -> str:
        """``Available``, ``Initializing`` or ``Unavailable: <error>``."""
        if self.state is State.UNAVAILABLE:
            return f"Unavailable: {self.error}"
        return str(self.state.value)


class Waiter:
    """A callback that has not been called yet."""

    __slots__ = ("_callback", "_entry")

    def __init__(self, entry: Entry, callback: Callback) -> None:
        self._entry: Entry | None = entry
        self._callback = callback

    def cancel(self) -> None:
        """It is not called any more; nothing happens when it has been."""
        if self._entry is not None:
            self._entry.waiters.pop(self, None)
            self._entry = None

    def answer(self, answer: Answer) -> None:
        """For the store: calls it."""
        self._entry = None
        call(self._callback, answer)


class Entry:
    """What is known of one identity."""

    __slots__ = (
        "attempts",
        "certificate",
        "due",
        "error",
        "expires",
        "identity",
        "scope",
        "timer",
        "waiters",
    )

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.certificate: WorkloadCertificate | None = None
        self.expires = 0.0
        self.error: CertificateUnavailable | None = None
        self.attempts = 0
        self.due: float | None = None
        self.timer: Timer | None = None
        # of the request that is with the CA
        self.scope: asyncio.Timeout | None = None
        # in the order of their coming
        self.waiters: dict[Waiter, None] = {}


def call(callback: Callback, answer: Answer) -> None:
    """Calls back; what the callback raises is logged and goes no further."""
    try:
        callback(answer)
    except Exception:
        logger.exception("a waiter for a certificate failed")
