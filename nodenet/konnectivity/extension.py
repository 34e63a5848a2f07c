"""What our agent, server and client say to each other beyond the apiserver-network-proxy.

The protocol has neither an end of one direction nor credit: an EOF closes the whole connection, and
a peer that does not read stops every connection of its stream. Both are added here as two packets
that only travel where both ends have offered them in the metadata key `FEATURES_KEY`:

    agent -> server   nodenet-features: eof window=1048576     (request metadata of Connect)
    server -> agent   nodenet-features: eof window=1048576     (initial metadata)
    client -> server  nodenet-features: eof                    (request metadata of Proxy)
    server -> client  nodenet-features: eof                    (initial metadata)

``eof``: `Eof` means that its sender has sent all its DATA of the connection; the other direction
goes on. When both have ended the agent answers CLOSE_RSP, and CLOSE_REQ stays what it is, the end
of both. ``window=N``: the offering side holds up to N bytes of one connection; its peer never has
more than N bytes of payload under way that `Credit` has not given back. An upstream peer ignores
the key, and would ignore the packets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from nodenet.konnectivity.packets import varint

#: Metadata key; the value is a list of words, unknown ones are ignored.
FEATURES_KEY: Final = "nodenet-features"
#: Bytes of one connection that we hold for a slow receiver. Enough for 1 Gbit/s at a round trip of
#: 8 ms; a thousand stalled connections hold 1 GiB at worst.
WINDOW_BYTES: Final = 1024 * 1024
#: Offers outside of this are taken as the nearer bound: less starves, more is no bound.
LEAST_WINDOW_BYTES: Final = 64 * 1024
LARGEST_WINDOW_BYTES: Final = 64 * 1024 * 1024

#: Packet types, far from what upstream may add next.
EOF_TYPE: Final = 64
CREDIT_TYPE: Final = 65

_EOF_START: Final = b"\x08\x40\x82\x04"  # type = 64, field 64 of wire type 2
_CREDIT_START: Final = b"\x08\x41\x8a\x04"  # type = 65, field 65
_WINDOW: Final = re.compile(r"window=([0-9]{1,10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What one end offers."""

    eof: bool = False
    window: int | None = None
    """Bytes it holds of each connection; None: it has no credit to give."""

    def text(self) -> str:
        """The metadata value."""
        words = ["eof"] if self.eof else []
        if self.window is not None:
            words.append(f"window={self.window}")
        return " ".join(words)


#: What our agent and server offer each other.
OURS: Final = Features(eof=True, window=WINDOW_BYTES)
#: What a peer offers that does not know the key.
NONE: Final = Features()


def parse_features(value: str | None) -> Features:
    """What a metadata value offers; never an error, a foreign word means nothing."""
    words = (value or "").split()
    window = None
    for word in words:
        if found := _WINDOW.fullmatch(word):
            window = min(max(int(found[1]), LEAST_WINDOW_BYTES), LARGEST_WINDOW_BYTES)
    return Features(eof="eof" in words, window=window)


class Eof(msgspec.Struct, frozen=True, gc=False):
    """No more DATA follows from the sender of this."""

    connect_id: int


class Credit(msgspec.Struct, frozen=True, gc=False):
    """The receiver has passed on ``size`` bytes of payload: as many more may be sent."""

    connect_id: int
    size: int


def push_eof(connect_id: int) -> bytes:
    """An `Eof` message."""
    inner = b"\x08" + varint(connect_id)
    return _EOF_START + varint(len(inner)) + inner


def push_credit(connect_id: int, size: int) -> bytes:
    """A `Credit` message."""
    inner = b"\x08" + varint(connect_id) + b"\x10" + varint(size)
    return _CREDIT_START + varint(len(inner)) + inner


def pull_extension(message: bytes) -> Eof | Credit | None:
    """The value of a message made by one of the above; None for every other message."""
    start = message[:4]
    try:
        if start == _EOF_START and message[5] == 0x08:
            connect_id, at = _varint(message, 6)
            return Eof(connect_id) if at == len(message) else None
        if start == _CREDIT_START and message[5] == 0x08:
            connect_id, at = _varint(message, 6)
            if message[at] != 0x10:
                return None
            size, at = _varint(message, at + 1)
            return Credit(connect_id, size) if at == len(message) else None
    except IndexError:
        pass
    return None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A non-negative varint of up to 63 bits and where it ends. IndexError when it is none."""
    value = shift = 0
    while shift < 63:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError
