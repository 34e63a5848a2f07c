"""A map's entries decoded by `nodenet.abi`, in the shape bpftool gives for maps with BTF.

``{"key": {...}, "value": {...}}``; per-CPU maps ``{"key": {...}, "values": [{"cpu": 0,
"value": {...}}]}``. 64-bit ids are strings, addresses text (None when unset), flags lists of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntFlag
from typing import Any, Final

from nodenet import abi
from nodenet.abi import ConnFlag, EventKind, Layout, PodFlag, Reason, Stat
from nodenet.errors import NotFound, UsageError
from nodenet.kernel.errors import KernelError
from nodenet.kernel.maps import Map
from nodenet.paths import Instance

Entry = dict[str, Any]
Decoded = dict[str, Any]

_FLAGS: Final[dict[str, type[IntFlag]]] = {
    abi.POD.c_name: PodFlag,
    abi.CONN.c_name: ConnFlag,
    abi.EVENT.c_name: ConnFlag,
}
_NO_ADDRESS: Final = bytes(16)


class CannotDump(UsageError):
    """The map is of a type that has no entries to list."""


class LayoutMismatch(KernelError):
    """The pinned map is not laid out as this nodenet expects."""


def open_map(instance: Instance, name: str) -> Map:
    """The pinned map; NotFound naming those there are, CannotDump for what has no entries."""
    definition = abi.MAPS.get(name)
    if definition is None:
        raise NotFound(f"no map {name}; nodenet has: {' '.join(sorted(abi.MAPS))}")
    if definition.type is abi.MapType.RINGBUF:
        raise CannotDump(
            f"map {name} is a ring buffer and cannot be dumped", hint="use: nodenet conn watch"
        )
    if definition.type is abi.MapType.SK_STORAGE:
        raise CannotDump(
            f"map {name} hangs on the sockets and cannot be dumped", hint="use: nodenet conn list"
        )
    try:
        return Map.open(instance.maps / name)
    except NotFound as error:
        raise NotFound(
            f"map {name} is not loaded: {instance.maps / name} is not there",
            hint="start capture: nodenet node run, or nodenet lab up",
        ) from error


def check_layout(table: Map, definition: abi.MapDef, schema: int | None) -> None:
    """LayoutMismatch when keys or values are not of the size this version decodes."""
    for what, layout, size in (
        ("key", definition.key, table.key_size),
        ("value", definition.value, table.value_size),
    ):
        if layout is not None and size != layout.size:
            raise LayoutMismatch(
                f"map {definition.name}: {what} is {size} bytes, this nodenet expects "
                f"{layout.size} (schema {schema if schema is not None else '?'} "
                f"against {abi.SCHEMA})",
                hint="use --hex",
            )


class Key(dict[str, Any]):
    """A decoded key. Entries are told apart by it, so it can be one of a mapping itself."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.values()))

    def __str__(self) -> str:
        """``ip=10.42.1.7``, what ``--key`` takes."""
        return ",".join(f"{name}={value}" for name, value in self.items())

    def order(self) -> tuple[tuple[bool, Any], ...]:
        """Sorts keys of one map; an absent value comes first."""
        return tuple((value is not None, value) for value in self.values())


def entries(table: Map, definition: abi.MapDef) -> list[Entry]:
    """Every entry, decoded, by key."""
    assert definition.key is not None and definition.value is not None
    decode_key, decode_value = decoder(definition.key), decoder(definition.value)
    name_key = _KEY_NAMES.get(definition.name)
    found = []
    for raw_key, values in _raw(table):
        key = Key(decode_key(raw_key))
        if name_key is not None:
            key["name"] = name_key(int(key["index"]))
        found.append(_entry(table, key, [decode_value(value) for value in values]))
    return sorted(found, key=lambda entry: entry["key"].order())


def hex_entries(table: Map) -> list[Entry]:
    """Every entry as bytes, ``["0x0a", ...]``, as bpftool prints maps without BTF; by key."""
    return [
        _entry(table, hex_bytes(key), [hex_bytes(value) for value in values])
        for key, values in sorted(_raw(table))
    ]


def decoder(layout: Layout) -> Callable[[bytes], Decoded]:
    """A function that takes one struct apart as the roles of its members say."""
    shows = [(f.name, _show(layout, f)) for f in layout.fields]
    unpack = layout.struct.unpack

    def decode(raw: bytes) -> Decoded:
        return {
            name: show(value)
            for (name, show), value in zip(shows, unpack(raw), strict=True)
            if show is not None
        }

    return decode


def hex_bytes(raw: bytes) -> tuple[str, ...]:
    """``("0x0a", "0xff")``."""
    return tuple(f"0x{byte:02x}" for byte in raw)


def matcher(definition: abi.MapDef, conditions: Mapping[str, str]) -> Callable[[Entry], bool]:
    """Whether an entry's key has these values, as text. UsageError for a field it has not."""
    assert definition.key is not None
    known = [f.name for f in definition.key.fields if f.role != "pad"]
    if definition.name in _KEY_NAMES:
        known.append("name")
    for field in conditions:
        if field not in known:
            raise UsageError(
                f"map {definition.name} has no key field {field}", hint=f"one of: {' '.join(known)}"
            )
    return lambda entry: all(
        str(entry["key"][field]) == value for field, value in conditions.items()
    )


def _raw(table: Map) -> Iterator[tuple[bytes, list[bytes]]]:
    if table.per_cpu:
        yield from table.items_percpu()
    else:
        for key, value in table.items():
            yield key, [value]


def _entry(table: Map, key: Any, values: list[Any]) -> Entry:
    if table.per_cpu:
        return {"key": key, "values": [{"cpu": i, "value": v} for i, v in enumerate(values)]}
    return {"key": key, "value": values[0]}


def _show(layout: Layout, field: abi.Field) -> Callable[[Any], Any] | None:
    """What makes a member's JSON value of its unpacked one; None for padding."""
    flags = _FLAGS.get(layout.c_name)
    if field.name == "flags" and flags is not None:
        return lambda number: _flag_names(flags, number)
    return _network_order if field.name.endswith("_be") else _SHOWS.get(field.role, _same)


def _same(value: Any) -> Any:
    return value


def _flag_names(kind: type[IntFlag], number: int) -> list[str]:
    known = {flag.value: flag.name for flag in kind}
    bits = [1 << i for i in range(number.bit_length()) if number >> i & 1]
    return [(known.get(bit) or f"0x{bit:x}").lower().replace("_", "-") for bit in bits]


def _reason(number: int) -> str | None:
    if not number:
        return None
    try:
        return Reason(number).text
    except ValueError:
        return f"reason-{number}"


def _stat_name(index: int) -> str | None:
    """``out-captured``, ``in-proxy-down``, ``events-lost``; None for an index without meaning."""
    for base, end, direction in ((0, Stat.IN, "out"), (Stat.IN, 2 * Stat.IN, "in")):
        if base <= index < end:
            try:
                return f"{direction}-{Reason(index - base).text}"
            except ValueError:
                return None
    try:
        return Stat(index).name.lower().replace("_", "-")
    except ValueError:
        return None


def _kind_name(index: int) -> str | None:
    try:
        return EventKind(index).name.lower()
    except ValueError:
        return None


_SHOWS: Final[dict[str, Callable[[Any], Any] | None]] = {
    "pad": None,
    "ip": lambda raw: None if raw == _NO_ADDRESS else str(abi.unpack_ip(raw)),
    "text": lambda raw: raw.partition(b"\0")[0].decode(errors="replace"),
    "bytes": lambda raw: raw.hex(),
    "id": str,
    "reason": _reason,
}


def _network_order(raw: bytes) -> str:
    return str(int.from_bytes(raw, "big"))


#: Arrays whose index has a name.
_KEY_NAMES: Final[dict[str, Callable[[int], str | None]]] = {
    "stat": _stat_name,
    "watch": _kind_name,
}
