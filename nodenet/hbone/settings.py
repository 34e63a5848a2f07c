"""SETTINGS of both sides (RFC 9113 section 6.5): what we announce, what the peer announced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from nodenet.hbone import frames
from nodenet.hbone.errors import BadSetting, ErrorCode, H2Error

KIB: Final = 1024
MIB: Final = 1024 * KIB

#: Streams a client may assume before the peer's SETTINGS are there (ztunnel:
#: src/proxy/h2/client.rs, initial_max_send_streams).
INITIAL_MAX_STREAMS: Final = 100
#: What a peer that says nothing about MAX_CONCURRENT_STREAMS allows.
UNLIMITED_STREAMS: Final = 0xFFFF_FFFF
#: Least header list to announce: a CONNECT with what belongs to it has some 400 bytes.
MIN_HEADER_LIST: Final = 1024


class Role(Enum):
    """Which side of the connection this is."""

    CLIENT = "client"
    SERVER = "server"


class Setting(IntEnum):
    """RFC 9113 section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """What this side announces and holds the peer to. Sizes in bytes; defaults are ztunnel's.

    Raises BadSetting for a value out of range.
    """

    window: int = 4 * MIB
    """Receive window of a stream."""
    connection_window: int = 16 * MIB
    """Receive window of the connection: larger than a stream's, or one stream stops all others."""
    max_frame: int = 1 * MIB
    """Largest payload of a frame the peer may send."""
    max_header_list: int | None = None
    """Largest header list, decoded; None is 65,536 for a server and 16,384 for a client."""
    max_streams: int = 200
    """Streams a client may have open on us at a time; a client announces nothing."""
    backlog: int = 128 * MIB
    """Most bytes that are granted or received and not yet consumed, on the whole connection.

    The connection's window opens again on receipt, not on consumption, so that stalled tunnels do
    not stop the others; this is where that ends, because somebody has to hold the bytes. At a
    quarter of it the windows of streams are narrowed (`flow`): with the defaults all streams but
    one may stall, and that one still has the whole connection window.
    """

    def __post_init__(self) -> None:
        for name, low, high in (
            ("window", 1, frames.MAX_WINDOW),
            ("connection_window", frames.DEFAULT_WINDOW, frames.MAX_WINDOW),
            ("max_frame", frames.DEFAULT_MAX_FRAME, frames.LARGEST_MAX_FRAME),
            ("max_header_list", MIN_HEADER_LIST, 0xFFFF_FFFF),
            ("max_streams", 0, 0xFFFF_FFFF),
            ("backlog", self.connection_window, 1 << 62),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise BadSetting(name, value, low, high)

    def header_list(self, role: Role) -> int:
        """`max_header_list`, or its default in this role."""
        if self.max_header_list is not None:
            return self.max_header_list
        return 64 * KIB if role is Role.SERVER else 16 * KIB

    def opening(self, role: Role) -> bytes:
        """The first bytes on the connection: preface of a client, SETTINGS, window."""
        pairs: list[tuple[int, int]] = [
            (Setting.INITIAL_WINDOW_SIZE, self.window),
            (Setting.MAX_FRAME_SIZE, self.max_frame),
            (Setting.MAX_HEADER_LIST_SIZE, self.header_list(role)),
        ]
        if role is Role.SERVER:
            pairs.append((Setting.MAX_CONCURRENT_STREAMS, self.max_streams))
        else:
            pairs.insert(0, (Setting.ENABLE_PUSH, 0))
        opening = frames.PREFACE if role is Role.CLIENT else b""
        opening += frames.settings(pairs)
        more = self.connection_window - frames.DEFAULT_WINDOW
        return opening + frames.window_update(0, more) if more else opening


class PeerSettings:
    """What the peer announced so far, beginning with the protocol's defaults."""

    __slots__ = (
        "header_table_size",
        "initial_window",
        "max_frame",
        "max_header_list",
        "max_streams",
    )

    def __init__(self) -> None:
        self.header_table_size = 4096
        self.max_streams = INITIAL_MAX_STREAMS
        self.initial_window = frames.DEFAULT_WINDOW
        self.max_frame = frames.DEFAULT_MAX_FRAME
        self.max_header_list: int | None = None


def parse(payload: memoryview, sender: Role) -> Iterator[tuple[int, int]]:
    """The pairs of a SETTINGS payload in order, values checked; unknown identifiers are left out.

    The payload's length is a multiple of 6. Raises H2Error.
    """
    for setting, value in frames.SETTING.iter_unpack(payload):
        if setting == Setting.ENABLE_PUSH:
            if value > 1 or (value and sender is Role.SERVER):
                raise H2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
        elif setting == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise H2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {value}")
        elif setting == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_MAX_FRAME <= value <= frames.LARGEST_MAX_FRAME:
                raise H2Error(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value}")
        elif not Setting.HEADER_TABLE_SIZE <= setting <= Setting.MAX_HEADER_LIST_SIZE:
            continue
        yield setting, value
