"""Header blocks (RFC 7541): what we send, as bytes that need no state, and what peers send.

Encoding uses literals without indexing and without Huffman only. Such bytes mean the same
anywhere on any connection, so the parts of a block that do not change are encoded once and
joined. Decoding takes blocks of that kind in one pass and leaves everything else to `hpack`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NewType

import hpack
from hpack.table import HeaderTable

#: Encoded fields, to be sent on any connection. Blocks may be joined.
HeaderBlock = NewType("HeaderBlock", bytes)

#: RFC 7541 section 4.1: what a field counts besides its name and value.
FIELD_OVERHEAD: Final = 32
_STATIC: Final[tuple[tuple[bytes, bytes], ...]] = HeaderTable.STATIC_TABLE
_METHOD: Final = 2
_AUTHORITY: Final = 1
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
    size = len(value)
    head = _LENGTHS[size] if size < 1024 else _length(size)
    return HeaderBlock(b"\0" + _string(name) + head + value)


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
    for index, (name, value) in enumerate(_STATIC, 1)
    if name == b":status"
}


def status(code: int) -> HeaderBlock:
    """The pseudo field of a response."""
    known = _STATUS_BYTES.get(code)
    return HeaderBlock(known or bytes((_STATUS,)) + _string(b"%03d" % code))


class HeaderListTooLarge(Exception):
    """The decoded list passes the limit; what follows on the connection cannot be decoded."""


class Undecodable(Exception):
    """The block is not HPACK."""


class Decoder:
    """Decodes the header blocks of one connection, in the order received."""

    __slots__ = ("_hpack", "_max_list")

    def __init__(self, max_header_list: int) -> None:
        self._max_list = max_header_list
        self._hpack = hpack.Decoder(max_header_list)

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """The fields of a complete block. Raises Undecodable or HeaderListTooLarge."""
        plain = self._plain(block)
        if plain is not None:
            return plain
        try:
            return list(self._hpack.decode(block, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise HeaderListTooLarge from error
        except hpack.HPACKError as error:
            raise Undecodable(str(error)) from error

    def _plain(self, block: bytes) -> list[tuple[bytes, bytes]] | None:
        """The fields of a block that neither reads nor changes the dynamic table.

        None when it has anything but static entries and literals that are not to be indexed,
        without Huffman; nothing has happened then.
        """
        decoded: list[tuple[bytes, bytes]] = []
        at, end, size = 0, len(block), 0
        try:
            while at < end:
                first = block[at]
                at += 1
                if first >= 0x40:  # an index, or a literal that is to be indexed
                    if not 0x80 < first <= 0xBD:  # not in the static table
                        return None
                    pair = _STATIC[first - 0x81]
                    decoded.append(pair)
                    size += len(pair[0]) + len(pair[1]) + FIELD_OVERHEAD
                    continue
                if first >= 0x20:  # the dynamic table changes its size
                    return None
                index = first & 0x0F
                if index == 0x0F:  # an index of more than one byte
                    return None
                if index:
                    name = _STATIC[index - 1][0]
                else:
                    length = block[at]
                    if length >= 0x7F:  # Huffman, or a name of 127 bytes and more
                        return None
                    at += 1
                    name = block[at : at + length]
                    at += length
                length = block[at]
                at += 1
                if length >= 0x7F:
                    if length > 0x7F:  # Huffman
                        return None
                    more = block[at]
                    at += 1
                    length += more
                    if more > 0x7F:
                        more = block[at]
                        at += 1
                        if more > 0x7F:  # more than 16 KiB
                            return None
                        length += (more << 7) - 0x80
                value = block[at : at + length]
                at += length
                decoded.append((name, value))
                size += len(name) + length + FIELD_OVERHEAD
        except IndexError:
            return None
        # cut short: hpack says what is wrong; too large: hpack says so too
        return decoded if at == end and size <= self._max_list else None
