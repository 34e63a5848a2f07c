"""Encoding of header blocks (RFC 7541) as bytes that need no state.

Literals without indexing and without Huffman only, and entries of the static table. Such bytes
mean the same anywhere on any connection, so the parts of a block that do not change are encoded
once and joined. Cheaper than anything that compresses: a block is written once for a tunnel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NewType

from nodenet.hbone.hpack_static import STATIC

#: Encoded fields, to be sent on any connection. Blocks may be joined.
HeaderBlock = NewType("HeaderBlock", bytes)

_AUTHORITY: Final = 1
_METHOD: Final = 2
_STATUS: Final = 8


def _length(value: int) -> bytes:
    """A string's length: 7 bits, no Huffman (section 5.1)."""
    if value < 0x7F:
        return bytes((value,))
    encoded = bytearray((0x7F,))
    value -= 0x7F
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


#: Lengths of all but monstrous values, made once.
_LENGTHS: Final = tuple(_length(value) for value in range(1024))


def _string(value: bytes) -> bytes:
    size = len(value)
    return (_LENGTHS[size] if size < 1024 else _length(size)) + value


def field(name: bytes, value: bytes) -> HeaderBlock:
    """One field, the name in lower case."""
    return HeaderBlock(b"\0" + _string(name) + _string(value))


def fields(pairs: Iterable[tuple[bytes, bytes]]) -> HeaderBlock:
    """Some fields, in order."""
    return HeaderBlock(b"".join([field(name, value) for name, value in pairs]))


_CONNECT: Final = bytes((_METHOD,)) + _string(b"CONNECT") + bytes((_AUTHORITY,))


def connect(authority: bytes, rest: bytes = b"") -> HeaderBlock:
    """A CONNECT request; ``rest`` are the encoded fields after the pseudo ones."""
    return HeaderBlock(_CONNECT + _string(authority) + rest)


#: Statuses that stand in the static table are one byte.
_STATUS_BYTES: Final = {
    int(value): bytes((0x80 | index,))
    for index, (name, value) in enumerate(STATIC, 1)
    if name == b":status"
}


def status(code: int) -> HeaderBlock:
    """The pseudo field of a response."""
    known = _STATUS_BYTES.get(code)
    return HeaderBlock(known or bytes((_STATUS,)) + _string(b"%03d" % code))
