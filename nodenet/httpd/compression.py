"""Content encodings of answers: what a client accepts, and a body gzipped piece by piece."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Final

#: zlib's window with the gzip header and trailer added (zlib manual, deflateInit2).
_GZIP: Final = 16 + zlib.MAX_WBITS
#: 6 costs twice the time for one part in thirty of the size, on metrics and on JSON.
_LEVEL: Final = 4
#: Compressed at one go: about a millisecond of the event loop.
PIECE_BYTES: Final = 64 * 1024
#: A body that is smaller is sent as it is: it fits into one packet anyway.
LEAST_BYTES: Final = 1024


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip (RFC 9110 section 12.5.3)."""
    quality: dict[str, float] = {}
    for part in accept_encoding.split(","):
        coding, _, parameter = part.partition(";")
        name, _, value = parameter.strip().partition("=")
        try:
            weight = float(value) if name.strip().lower() == "q" else 1.0
        except ValueError:
            weight = 0.0
        quality[coding.strip().lower()] = weight
    return next((quality[c] > 0 for c in ("gzip", "x-gzip", "*") if c in quality), False)


async def gzipped(body: AsyncIterator[bytes] | bytes) -> AsyncIterator[bytes]:
    """The body compressed; lets others run between two pieces."""
    squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    async for piece in _pieces(body):
        if out := squeeze.compress(piece):
            yield out
        await asyncio.sleep(0)
    yield squeeze.flush()


async def _pieces(body: AsyncIterator[bytes] | bytes) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        for piece in _cut(body):
            yield piece
        return
    async for part in body:
        for piece in _cut(part):
            yield piece


def _cut(raw: bytes) -> Iterator[bytes]:
    for start in range(0, len(raw), PIECE_BYTES):
        yield raw[start : start + PIECE_BYTES]
