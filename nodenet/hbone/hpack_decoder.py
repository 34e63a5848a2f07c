"""Decoding of header blocks (RFC 7541), one decoder a connection.

Ours because a tunnel is opened thousands of times a second: peers that index and Huffman-code
(ztunnel does) cost a third of what the general library takes, blocks of plain literals a tenth;
and because a block of N bytes must cost about N, whatever is in it.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from nodenet.hbone import huffman
from nodenet.hbone.hpack_static import STATIC

#: Size of the dynamic table: the protocol's default, which our SETTINGS leave as it is.
TABLE_BYTES: Final = 4096
#: Section 4.1: what an entry counts besides its name and value.
FIELD_OVERHEAD: Final = 32
#: Section 4.2: at most the smallest size and the last one are told.
_MAX_SIZE_UPDATES: Final = 2
#: Bytes of an integer after its first: 2**28, more than any block or index.
_MAX_INTEGER_BYTES: Final = 4
_STATIC_COUNT: Final = len(STATIC)


class Undecodable(Exception):
    """The block is not HPACK: the connection is lost, as nobody knows the state any more."""


class Decoder:
    """The receiving side's dynamic table, and decoding with it."""

    __slots__ = ("_capacity", "_entries", "_max_list", "_size", "changes")

    def __init__(self, max_header_list: int) -> None:
        self._max_list = max_header_list
        #: Newest first: the index on the wire, less the static ones.
        self._entries: deque[tuple[bytes, bytes]] = deque()
        self._size = 0
        self._capacity = TABLE_BYTES
        self.changes = 0
        """Grows whenever the table does change: until then a block means the same again."""

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]] | None:
        """The fields of a complete block; None when they are larger than the limit together.

        The table is as the peer has it in both cases. Raises Undecodable.
        """
        try:
            return self._decode(block)
        except IndexError:
            raise Undecodable("a header block is cut short") from None
        except huffman.InvalidHuffman as error:
            raise Undecodable(str(error)) from error

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]] | None:
        fields: list[tuple[bytes, bytes]] = []
        at, end, room = 0, len(block), self._max_list
        while at < end:
            first = block[at]
            at += 1
            if first >= 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                pair = STATIC[index - 1] if 0 < index <= _STATIC_COUNT else self._entry(index)
                room -= len(pair[0]) + len(pair[1]) + FIELD_OVERHEAD
                if room >= 0:
                    fields.append(pair)
                continue
            if first >= 0x40:
                index = first & 0x3F
                if index == 0x3F:
                    index, at = _integer(block, at, 0x3F)
            elif first < 0x20:
                index = first & 0x0F
                if index == 0x0F:
                    index, at = _integer(block, at, 0x0F)
            elif at == 1:
                at = self._resize(block)
                continue
            else:
                raise Undecodable("the dynamic table is resized inside a header block")
            if index:
                name = (STATIC[index - 1] if index <= _STATIC_COUNT else self._entry(index))[0]
            else:
                # a string: its length, with the top bit for Huffman, and its bytes
                coded = block[at]
                at += 1
                length = coded & 0x7F
                if length == 0x7F:
                    length, at = _integer(block, at, 0x7F)
                name = block[at : at + length]
                at += length
                if coded > 0x7F:
                    name = huffman.decode(name)
            coded = block[at]
            at += 1
            length = coded & 0x7F
            if length == 0x7F:
                length, at = _integer(block, at, 0x7F)
            value = block[at : at + length]
            at += length
            if at > end:
                raise Undecodable("a header block is cut short")
            if coded > 0x7F:
                value = huffman.decode(value)
            pair = (name, value)
            if first >= 0x40:
                self._insert(pair)
            room -= len(name) + len(value) + FIELD_OVERHEAD
            if room >= 0:
                fields.append(pair)
        return fields if room >= 0 else None

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index > _STATIC_COUNT:
            try:
                return self._entries[index - _STATIC_COUNT - 1]
            except IndexError:
                pass
        raise Undecodable(f"no header field has the index {index}")

    def _insert(self, pair: tuple[bytes, bytes]) -> None:
        self.changes += 1
        self._entries.appendleft(pair)
        self._size += len(pair[0]) + len(pair[1]) + FIELD_OVERHEAD
        self._evict()

    def _evict(self) -> None:
        entries, size = self._entries, self._size
        while size > self._capacity:
            name, value = entries.pop()
            size -= len(name) + len(value) + FIELD_OVERHEAD
        self._size = size

    def _resize(self, block: bytes) -> int:
        """Size updates at the start of a block; returns where they end."""
        at = 0
        for _ in range(_MAX_SIZE_UPDATES):
            if at >= len(block) or not 0x20 <= block[at] < 0x40:
                break
            size = block[at] & 0x1F
            at += 1
            if size == 0x1F:
                size, at = _integer(block, at, 0x1F)
            if size > TABLE_BYTES:
                raise Undecodable(f"a dynamic table of {size} bytes, {TABLE_BYTES} are allowed")
            self.changes += 1
            self._capacity = size
            self._evict()
        return at


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """An integer that fills its prefix (section 5.1), and where it ends."""
    value, shift = prefix, 0
    for _ in range(_MAX_INTEGER_BYTES):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Undecodable("an integer in a header block is too large")
