"""The window that one side gives the other for a tunnel, and when it becomes a wider one.

A reader that stops costs as much memory as its window, so windows begin small. Where the reader
takes half of its window faster than anything but a bulk transfer does, the window may be what holds
the sender back, and is doubled: that takes several wake-ups of both sides out of a transfer. Where
there are many tunnels one has something to send whenever another waits, and none is widened.
"""

from __future__ import annotations

from typing import Final, Protocol

#: The widest one; ours begins at `extensions.DEFAULT_WINDOW_BYTES`.
MOST_WINDOW_BYTES: Final = 4 << 20
#: Half a window taken within it is fast: for the first one that is 40 MB/s.
FAST_SECONDS: Final = 0.025
#: With more tunnels of a stream than this windows stay as they are.
FEW_TUNNELS: Final = 32


class Receiving(Protocol):
    """A tunnel's receiving side."""

    window: int
    """Its size in bytes."""
    room: int
    """Bytes the peer may still send."""
    taken: int
    """Bytes that were taken from us and not given back."""
    granted_at: float
    """When bytes were last given back, or the tunnel began."""


def grant(tunnel: Receiving, tunnels: int, now: float) -> int:
    """What the next WINDOW gives to one of so many tunnels, asked when half its window is taken."""
    increment = tunnel.taken
    fast = now - tunnel.granted_at < FAST_SECONDS
    if fast and tunnel.window < MOST_WINDOW_BYTES and tunnels <= FEW_TUNNELS:
        increment += tunnel.window
        tunnel.window <<= 1
    tunnel.granted_at = now
    tunnel.taken = 0
    tunnel.room += increment
    return increment
