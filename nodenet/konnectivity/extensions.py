"""What our server, agent and client can do for each other beyond upstream's protocol.

Each side names in the metadata `KEY` what it knows: the one that opens the stream in its request,
the server in its initial metadata. What both name is in force for the connections of that stream;
a peer that names nothing gets upstream's protocol and nothing else.

``half-close``
    `packets.HalfClose` ends one direction of a connection, the other goes on.
``window=N``
    Flow control a connection. The side that says it takes N bytes of payload of each connection;
    a `packets.Window` it sends lets the other side send so many bytes more. So a reader that
    stops holds back its own connection and no other one of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

#: Metadata key, both ways.
KEY: Final = "nodenet-extensions"
#: Bytes of one connection that we take before it is read on: at 20 ms from the agent 100 MB/s. It
#: bounds what a stalled reader costs in memory, four times as much where reads were large
#: (`rpc.call.kept`).
DEFAULT_WINDOW_BYTES: Final = 2 << 20
#: Below it a connection would stop for every packet, above it there is no limit left.
LEAST_WINDOW_BYTES: Final = 16 << 10
MOST_WINDOW_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Extensions:
    """What one side names. ``window`` 0: no flow control a connection."""

    half_close: bool = False
    window: int = 0

    def text(self) -> str:
        """The value of `KEY`; empty when there is nothing to name."""
        parts = ["half-close"] if self.half_close else []
        if self.window:
            parts.append(f"window={self.window}")
        return ",".join(parts)

    def shared_with(self, peer: Extensions) -> bool:
        """Whether both sides do flow control a connection."""
        return bool(self.window and peer.window)


#: What this version of ours names.
OURS: Final = Extensions(half_close=True, window=DEFAULT_WINDOW_BYTES)
NONE: Final = Extensions()


@lru_cache(maxsize=16)
def parse(text: str | None) -> Extensions:
    """Reads a value of `KEY`. Unknown names and impossible numbers are as if not named."""
    half_close, window = False, 0
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if name == "half-close":
            half_close = True
        elif name == "window" and value.isascii() and value.isdigit() and len(value) <= 10:
            size = int(value)
            window = size if LEAST_WINDOW_BYTES <= size <= MOST_WINDOW_BYTES else 0
    return Extensions(half_close, window)
