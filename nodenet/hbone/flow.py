"""Receive windows: when the peer gets credit back (RFC 9113 section 6.9).

A stream's credit comes back when the caller has consumed the bytes, so a slow receiver slows its
own sender. The connection's credit comes back on receipt, so a slow receiver slows nobody else's,
up to a limit on what may wait in memory: `LocalSettings.backlog`.

Both come back a quarter of the window at a time: one WINDOW_UPDATE for many frames, and the peer
never runs dry while the rest is under way.
"""

from __future__ import annotations

from typing import Final

from nodenet.hbone import frames
from nodenet.hbone.errors import ErrorCode, H2Error
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream

#: Near the backlog limit, credit of the connection comes back in pieces of this at least.
SCARCE_CREDIT: Final = 16 * 1024


class ReceiveCredit:
    """Bytes received on a connection against bytes allowed, all counted up and never down."""

    __slots__ = (
        "_allowed",
        "_grant_at",
        "_recv_initial",
        "_starved",
        "_stream_low",
        "outbox",
        "received",
        "settings",
        "taken",
    )

    def __init__(self, role: Role, settings: LocalSettings) -> None:
        self.settings = settings
        self.outbox = bytearray(settings.opening(role))
        """Control frames waiting to be written; the caller removes what it has written."""
        self.received = 0
        """Flow-controlled bytes received, or begun to be received."""
        self.taken = 0
        """Those of them that the caller has consumed, or that nobody will."""
        self._allowed = settings.connection_window
        #: `_grant` is called when `received` passes this.
        self._grant_at = settings.connection_window >> 2
        #: Credit is held back because of the backlog: `consumed` looks whether to give it.
        self._starved = False
        # until the peer has acknowledged our SETTINGS, the default may still be in use
        self._recv_initial = max(settings.window, frames.DEFAULT_WINDOW)
        #: A stream gets credit when its window and what waits together are down to this.
        self._stream_low = settings.window - (settings.window + 3 >> 2)

    @property
    def unconsumed(self) -> int:
        """Bytes received and not consumed, on all streams."""
        return self.received - self.taken

    @property
    def recv_window(self) -> int:
        """Bytes the peer may send on the whole connection."""
        return self._allowed - self.received

    def consumed(self, stream: Stream, count: int) -> None:
        """The caller has passed on ``count`` bytes of a stream.

        Also after the stream has ended; after a reset it does nothing, as those bytes were given
        up with it.
        """
        taken = stream.taken + count
        if taken > stream.received:
            count -= taken - stream.received
            taken = stream.received
        stream.taken = taken
        self.taken += count
        if stream.allowed - taken <= self._stream_low:
            increment = taken + self.settings.window - stream.allowed
            stream.allowed += increment
            self.outbox += frames.window_update(stream.id, increment)
        if self._starved:
            self._grant()

    def _grant(self) -> None:
        """Gives the connection what credit it may have. Raises H2Error when it was overdrawn."""
        received, allowed = self.received, self._allowed
        if received > allowed:
            raise H2Error(
                ErrorCode.FLOW_CONTROL_ERROR,
                f"{received - allowed} bytes more than the window of the connection",
            )
        settings = self.settings
        window = settings.connection_window
        full = received + window
        ceiling = self.taken + settings.backlog
        quarter = window >> 2
        increment = min(full, ceiling) - allowed
        if increment >= (quarter if full <= ceiling else SCARCE_CREDIT) or (
            increment > 0 and received == allowed
        ):
            self._allowed = allowed = allowed + increment
            self.outbox += frames.window_update(0, increment)
        self._starved = full - allowed >= quarter and ceiling < full
        self._grant_at = allowed - 1 if self._starved else allowed - window + quarter
