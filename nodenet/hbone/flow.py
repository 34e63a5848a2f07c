"""Receive windows: when the peer gets credit back (RFC 9113 section 6.9).

A stream's credit comes back when the caller has consumed the bytes, so a slow receiver slows its
own sender. The connection's credit comes back on receipt, so a slow receiver slows nobody else's,
up to a limit on what may wait in memory: `LocalSettings.backlog`.

Both come back a quarter of the window at a time: one WINDOW_UPDATE for many frames, and the peer
never runs dry while the rest is under way.

When much waits, the windows of all streams are narrowed by a SETTINGS frame (section 6.9.2) until
little waits again: as many receivers may stall then as there are streams, and the others go on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Final

from nodenet.hbone import frames
from nodenet.hbone.errors import ErrorCode, H2Error
from nodenet.hbone.settings import LocalSettings, Role, Setting
from nodenet.hbone.stream import Stream

#: Window of a stream while much waits. 200 streams stall with 50 MiB then, which is what the
#: backlog has beside `_NARROW_SHARE` and what is under way when that is reached; one that does not
#: stall still carries 12 MB/s over 20 ms.
NARROW_WINDOW: Final = 256 * 1024
#: Windows are narrowed when a quarter of the backlog is used, and widened at a quarter of that:
#: 24 MiB must come and go in between, so no peer sees more than some of these SETTINGS a second.
_NARROW_SHARE: Final = 2
_WIDEN_SHARE: Final = 4
#: Near the backlog limit, credit of the connection comes back in pieces of this at least.
SCARCE_CREDIT: Final = 16 * 1024


class ReceiveCredit:
    """Bytes received on a connection against bytes allowed, all counted up and never down."""

    __slots__ = (
        "_allowed",
        "_grant_at",
        "_narrow_at",
        "_narrowed",
        "_recv_initial",
        "_starved",
        "_stream_low",
        "_watchful",
        "_window",
        "acknowledged",
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
        self.acknowledged = False
        """The peer has acknowledged our SETTINGS, the latest where there were several."""
        #: The windows are narrow, or will be with the ACK of the SETTINGS that says so.
        self._narrowed = False
        #: `consumed` has to look: starved, or narrowed.
        self._watchful = False
        wide = settings.window > NARROW_WINDOW
        self._narrow_at = settings.backlog >> _NARROW_SHARE if wide else 1 << 62
        # until the peer has acknowledged our SETTINGS, the default may still be in use
        self._recv_initial = max(settings.window, frames.DEFAULT_WINDOW)
        self._aim(settings.window)

    def _aim(self, window: int) -> None:
        """From now on streams get credit up to this."""
        self._window = window
        #: A stream gets credit when its window and what waits together are down to this.
        self._stream_low = window - (window + 3 >> 2)

    @abstractmethod
    def _receiving_streams(self) -> Iterable[Stream]:
        """Streams the peer may send on."""

    @property
    def unconsumed(self) -> int:
        """Bytes received and not consumed, on all streams."""
        return self.received - self.taken

    @property
    def recv_window(self) -> int:
        """Bytes the peer may send on the whole connection."""
        return self._allowed - self.received

    def may_come(self, stream: Stream) -> int:
        """Bytes that a peer which keeps the rules may still send on a stream.

        More than its window while windows are narrow: what the peer had counted against the wide
        one may come behind its ACK where it writes from several threads (Go's net/http2 client).
        So nobody is held to a narrow window (RFC 9113 section 6.9.3 allows that); whoever ignores
        it stalls but its own connection.
        """
        narrower = self.settings.window - self._recv_initial
        window = stream.allowed - stream.received
        return max(0, window + narrower if narrower > 0 else window)

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
            self._top_up(stream)
        if self._watchful:
            self._look()

    def _top_up(self, stream: Stream) -> None:
        """Gives a stream what it may have at most."""
        increment = stream.taken + self._window - stream.allowed
        stream.allowed += increment
        self.outbox += frames.window_update(stream.id, increment)

    def _look(self) -> None:
        """Gives back what can be given, after something was consumed or given up."""
        if self._starved:
            self._grant()
        if self._narrowed and self.unconsumed <= self._narrow_at >> _WIDEN_SHARE:
            self._widen()

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
        if received - self.taken > self._narrow_at and not self._narrowed:
            self._narrow()
        self._watchful = self._starved or self._narrowed

    def _narrow(self) -> None:
        """Announces narrow windows; they hold when the peer has acknowledged it."""
        if self.acknowledged:
            self._narrowed = True
            self._announce(NARROW_WINDOW)

    def _widen(self) -> None:
        """Announces the full windows again, which the peer may use as soon as it reads that."""
        if self.acknowledged:
            self._narrowed = False
            self._watchful = self._starved
            window = self.settings.window
            self._aim(window)
            self._announce(window)
            self._change(window - self._recv_initial)

    def _announce(self, window: int) -> None:
        self.acknowledged = False
        self.outbox += frames.settings([(Setting.INITIAL_WINDOW_SIZE, window)])

    def _change(self, by: int) -> None:
        """Changes the windows of all streams by the difference (RFC 9113 section 6.9.2)."""
        self._recv_initial += by
        if by:
            for stream in self._receiving_streams():
                stream.allowed += by
                # what was taken in the meantime left the old window open and not the new one
                if stream.allowed - stream.taken <= self._stream_low:
                    self._top_up(stream)

    def _acknowledge(self) -> None:
        """The peer has acknowledged SETTINGS of ours. Raises H2Error when it has none to."""
        if self.acknowledged:
            text = "SETTINGS acknowledged that were not sent"
            raise H2Error(ErrorCode.PROTOCOL_ERROR, text)
        self.acknowledged = True
        if self._narrowed:
            self._aim(NARROW_WINDOW)
        self._change(self._window - self._recv_initial)
        if self._watchful:
            self._look()
