"""The profile format of pprof, as much of it as a sampling profiler writes.

Source: google/pprof: proto/profile.proto. Written by hand: six message types of integers and
strings do not need generated code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_VARINT: Final = 0
_BYTES: Final = 2


class Frame(NamedTuple):
    """One frame of a stack."""

    function: str
    file: str
    first_line: int
    """Where the function begins."""
    line: int


def encode(
    stacks: Mapping[tuple[Frame, ...], int], *, began_ns: int, lasted_ns: int, period_ns: int
) -> bytes:
    """A profile of stacks, each innermost frame first, with how often it was seen."""
    strings = _Strings()
    functions: dict[tuple[str, str, int], int] = {}
    locations: dict[Frame, int] = {}
    out: list[bytes] = []
    for kind, unit in (("samples", "count"), ("wall", "nanoseconds")):
        out.append(_message(1, _int(1, strings.index(kind)) + _int(2, strings.index(unit))))
    for stack, count in stacks.items():
        ids = []
        for frame in stack:
            functions.setdefault(frame[:3], len(functions) + 1)
            ids.append(locations.setdefault(frame, len(locations) + 1))
        out.append(_message(2, _packed(1, ids) + _packed(2, (count, count * period_ns))))
    for frame, number in locations.items():
        line = _int(1, functions[frame[:3]]) + _int(2, frame.line)
        out.append(_message(4, _int(1, number) + _message(4, line)))
    for (name, file, first), number in functions.items():
        text = strings.index(name)
        body = _int(1, number) + _int(2, text) + _int(3, text) + _int(4, strings.index(file))
        out.append(_message(5, body + _int(5, first)))
    period = _int(1, strings.index("wall")) + _int(2, strings.index("nanoseconds"))
    out += (_message(6, text.encode(errors="replace")) for text in strings.all)
    out.append(_int(9, began_ns) + _int(10, lasted_ns))
    out.append(_message(11, period) + _int(12, period_ns))
    return b"".join(out)


class _Strings:
    """The string table; its first entry is empty."""

    def __init__(self) -> None:
        self._index = {"": 0}

    @property
    def all(self) -> Iterable[str]:
        return self._index

    def index(self, text: str) -> int:
        return self._index.setdefault(text, len(self._index))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value) if value else b""


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(body)) + body


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, values)))
