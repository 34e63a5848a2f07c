"""What one peer may cost us."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection; the defaults suit a few long streams that carry much."""

    stream_window: int = 4 << 20
    """Bytes a stream may send before we have taken them: what a paused stream costs at most."""
    connection_window: int = 16 << 20
    """The same over all streams. Given back on arrival, so that a paused stream stops no other."""
    max_frame_bytes: int = 1 << 20
    """SETTINGS_MAX_FRAME_SIZE: fewer headers for a peer that has much to send."""
    max_message_bytes: int = 16 << 20
    """A message that announces more is refused before a byte of it is kept."""
    max_calls: int = 65_536
    """Streams at a time; the next ones are refused (REFUSED_STREAM)."""
    max_header_bytes: int = 64 << 10
    """One header block with its CONTINUATIONs, and the list it decodes to."""
    keepalive_seconds: float = 3600.0
    """Silence after which we send a PING."""
    keepalive_timeout_seconds: float = 20.0
    """How long its answer may take; then the connection is lost (grpc-go: keepalive.Timeout)."""
    quantum_bytes: int = 256 << 10
    """What one stream sends before it is the next one's turn."""
    flush_bytes: int = 512 << 10
    """What all streams send before the transport is looked at again."""
