"""Where sockets are read into, so that large reads are not copied to be kept.

A transport that is given a buffer (`asyncio.BufferedProtocol`) reads straight into it. What little
arrives is copied out, and the buffer is used again; what fills a good part of it is handed on as a
view, and the next read gets another buffer. One serves all connections of a thread: a transport
asks for it, reads, and says how much that was, in one go.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

from nodenet.rpc.call import Buffer

#: One read(2), of a peer that has widened its Unix socket; by default that holds 208 KiB, and TLS
#: is unpacked 256 KiB at a time.
READ_BYTES: Final = 512 << 10
#: Less is copied: a view would keep the whole buffer alive for it.
_KEPT_BYTES: Final = READ_BYTES // 4
#: Buffers that are looked at whether their views are gone: a new one costs its zeroing.
_SPARES: Final = 8


def _references() -> int:
    """What getrefcount says of a buffer that nobody has a view of, where `ReadBuffer` asks.

    The list's, the loop's and its own; from CPython 3.14 on the loop's alone is enough for both.
    """
    spares = [bytearray()]
    for buffer in spares:
        return sys.getrefcount(buffer)
    raise AssertionError


#: A debugger that looks on has one more: too few is a buffer not used again, too many one that
#: is overwritten.
_UNUSED: Final = min(3, _references())


class ReadBuffer:
    """See the module."""

    __slots__ = ("_spares", "_view")

    def __init__(self) -> None:
        self._view: memoryview | None = None
        self._spares: list[bytearray] = []

    def get(self) -> memoryview:
        """Where the next read goes."""
        view = self._view
        if view is None:
            view = self._view = memoryview(self._unused())
        return view

    def filled(self, size: int) -> Buffer:
        """What the read brought: a view that is the caller's to keep, or bytes."""
        view = self._view
        assert view is not None, "get comes first"
        if size < _KEPT_BYTES:
            return bytes(view[:size])
        self._view = None
        return view[:size]

    def _unused(self) -> bytearray:
        spares = self._spares
        for buffer in spares:
            if sys.getrefcount(buffer) == _UNUSED:
                return buffer
        made = bytearray(READ_BYTES)
        if len(spares) == _SPARES:
            del spares[0]  # who has the oldest may keep it for long
        spares.append(made)
        return made


class _Shared(threading.local):
    def __init__(self) -> None:
        self.buffer = ReadBuffer()


_SHARED: Final = _Shared()


def shared() -> ReadBuffer:
    """The one of this thread."""
    return _SHARED.buffer
