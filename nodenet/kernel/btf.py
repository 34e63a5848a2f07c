"""Facts about this kernel read from its BTF: offsets of struct members and ids of functions.

Pure Python and only what was asked for; 0.1-0.2 s for the 126,000 types of a 6.18 kernel, so the
loader keeps the answers (`nodenet.kernel.cache`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from nodenet.errors import NotSupported
from nodenet.kernel.errors import KernelError

VMLINUX: Final = Path("/sys/kernel/btf/vmlinux")

#: ``NN_OFF_<name>`` of the C sources: struct and member path. A path goes through anonymous
#: members by itself; an array means its first element.
MEMBERS: Final[dict[str, tuple[str, str]]] = {
    "SKC_COOKIE": ("sock", "__sk_common.skc_cookie"),
    "SKC_STATE": ("sock", "__sk_common.skc_state"),
    "SK_ERR": ("sock", "sk_err"),
    "SK_FLAGS": ("sock", "__sk_common.skc_flags"),
    "SK_MARK": ("sock", "sk_mark"),
    "BYTES_SENT": ("tcp_sock", "bytes_sent"),
    "BYTES_ACKED": ("tcp_sock", "bytes_acked"),
    "BYTES_RECEIVED": ("tcp_sock", "bytes_received"),
    "BYTES_RETRANS": ("tcp_sock", "bytes_retrans"),
    "WRITE_SEQ": ("tcp_sock", "write_seq"),
    "SND_UNA": ("tcp_sock", "snd_una"),
    "SND_NXT": ("tcp_sock", "snd_nxt"),
    "SRTT_US": ("tcp_sock", "srtt_us"),
    "RTT_MIN_V": ("tcp_sock", "rtt_min.s.v"),
    "TOTAL_RETRANS": ("tcp_sock", "total_retrans"),
    "LOST_OUT": ("tcp_sock", "lost_out"),
    "SEGS_OUT": ("tcp_sock", "segs_out"),
    "SEGS_IN": ("tcp_sock", "segs_in"),
    "SND_CWND": ("tcp_sock", "snd_cwnd"),
    "DELIVERED": ("tcp_sock", "delivered"),
}

_MAGIC: Final = 0xEB9F
_INT, _ARRAY, _STRUCT, _UNION, _FUNC = 1, 3, 4, 5, 12
#: typedef, volatile, const, restrict, type tag: a name or a quality of another type.
_WRAPPERS: Final = frozenset({8, 9, 10, 11, 18})
#: Bytes after the 12 of struct btf_type: fixed by kind, and by the count in ``info``.
_FIXED: Final = {1: 4, 3: 12, 14: 4, 17: 4}
_EACH: Final = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}


class BtfBroken(KernelError):
    """The file is not BTF."""


class BtfMissing(NotSupported):
    """This kernel has no BTF, or it lacks something the programs read."""


class _Type(NamedTuple):
    position: int
    kind: int
    members: int
    bitfield: bool
    size_or_type: int


class Btf:
    """The types of one BTF blob, by id, and by the names given when it was made."""

    def __init__(self, raw: bytes, names: Collection[str]) -> None:
        """Indexes the blob; ``names`` are the structs and functions that will be asked for."""
        try:
            magic, _, _, header, type_at, type_len, str_at, str_len = struct.unpack_from(
                "<HBBIIIII", raw
            )
        except struct.error as error:
            raise BtfBroken("BTF: too short") from error
        if magic != _MAGIC:
            raise BtfBroken(f"BTF: magic {magic:#x}, not {_MAGIC:#x}")
        self._raw = raw
        self._strings = raw[header + str_at : header + str_at + str_len]
        wanted = {self._string_offset(name): name for name in names}
        self._positions, self._named = self._index(
            header + type_at, header + type_at + type_len, wanted
        )

    def _string_offset(self, name: str) -> int:
        # strings are stored once each, so a name is an offset and the scan compares numbers
        found = self._strings.find(b"\0" + name.encode() + b"\0")
        return found + 1 if found >= 0 else -1

    def _index(
        self, position: int, end: int, wanted: dict[int, str]
    ) -> tuple[list[int], dict[str, list[int]]]:
        positions, named = [0], dict[str, list[int]]()
        raw, unpack = self._raw, struct.Struct("<II").unpack_from
        fixed = [_FIXED.get(kind, 0) for kind in range(32)]
        each = [_EACH.get(kind, 0) for kind in range(32)]
        append = positions.append
        while position < end:
            name, info = unpack(raw, position)
            if name in wanted:
                named.setdefault(wanted[name], []).append(len(positions))
            append(position)
            kind = info >> 24 & 31
            position += 12 + fixed[kind] + each[kind] * (info & 0xFFFF)
        return positions, named

    def _type(self, ident: int) -> _Type:
        position = self._positions[ident]
        info, size = struct.unpack_from("<II", self._raw, position + 4)
        return _Type(position, info >> 24 & 31, info & 0xFFFF, bool(info >> 31), size)

    def ids(self, name: str) -> tuple[int, ...]:
        """The ids of all types of that name."""
        return tuple(self._named.get(name, ()))

    def function(self, name: str) -> int | None:
        """The id of a FUNC, as attach_btf_id wants it; None when there is none."""
        return next((i for i in self.ids(name) if self._type(i).kind == _FUNC), None)

    def offset(self, struct_name: str, path: str) -> int | None:
        """Bytes from the struct's start to the member; None when either is not there."""
        for ident in self.ids(struct_name):
            found = self._type(ident)
            if found.kind == _STRUCT and found.members:
                return self._find(found, path.split("."), 0)
        return None

    def _find(self, inside: _Type, path: list[str], base: int) -> int | None:
        for name, type_id, offset in self._members(inside):
            target = self._resolve(type_id)
            if name == path[0]:
                if len(path) == 1:
                    return base + offset
                return self._find(target, path[1:], base + offset)
            if not name and target.kind in (_STRUCT, _UNION):
                found = self._find(target, path, base + offset)
                if found is not None:
                    return found
        return None

    def _members(self, inside: _Type) -> Iterator[tuple[str, int, int]]:
        if inside.kind not in (_STRUCT, _UNION):
            return
        for i in range(inside.members):
            name, type_id, bits = struct.unpack_from(
                "<III", self._raw, inside.position + 12 + 12 * i
            )
            bits = bits & 0xFFFFFF if inside.bitfield else bits
            end = self._strings.index(b"\0", name)
            yield self._strings[name:end].decode(), type_id, bits // 8

    def _resolve(self, ident: int) -> _Type:
        """The type behind typedefs and qualifiers, and behind an array its element."""
        found = self._type(ident)
        while True:
            if found.kind in _WRAPPERS:
                found = self._type(found.size_or_type)
            elif found.kind == _ARRAY:
                (element,) = struct.unpack_from("<I", self._raw, found.position + 12)
                found = self._type(element)
            else:
                return found


class KernelFacts(NamedTuple):
    """Member offsets by `MEMBERS` name, and BTF ids by function name."""

    offsets: dict[str, int]
    functions: dict[str, int]


def read_facts(
    offsets: Collection[str], functions: Collection[str], path: Path = VMLINUX
) -> KernelFacts:
    """Reads what is asked for; BtfMissing names what this kernel lacks."""
    unknown = [name for name in offsets if name not in MEMBERS]
    if unknown:
        raise BtfBroken(
            f"NN_OFF_{unknown[0]}: no such offset; add it to nodenet.kernel.btf.MEMBERS"
        )
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise BtfMissing(str(path), "a kernel built with CONFIG_DEBUG_INFO_BTF") from error
    btf = Btf(raw, {MEMBERS[name][0] for name in offsets} | set(functions))
    found = {name: btf.offset(*MEMBERS[name]) for name in offsets}
    ids = {name: btf.function(name) for name in functions}
    for name, offset in found.items():
        if offset is None:
            owner, member = MEMBERS[name]
            raise BtfMissing(f"struct {owner}.{member}", "a kernel that has this member")
    for name, ident in ids.items():
        if ident is None:
            raise BtfMissing(name, "a kernel with this iterator (Linux 5.9)")
    return KernelFacts(
        {name: offset for name, offset in found.items() if offset is not None},
        {name: ident for name, ident in ids.items() if ident is not None},
    )
