"""Values from a JSON or YAML parser, checked one by one; what is wrong is named by its path.

Every function takes the value and its path and returns what it means, or raises `InvalidPart`. An
absent value and null are the same: the default.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from nodenet.endpoint import unmapped
from nodenet.mesh.policy import InvalidPart, Path

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

#: Reads one value.
Read = Callable[[object, Path], T]
#: JSON key to attribute and reader.
Fields = Mapping[str, tuple[str, Read[Any]]]

#: Longer texts are no names, hostnames or identities.
MAX_TEXT: Final = 2048
PORT_MAX: Final = 65535
CAPACITY_MAX: Final = 2**32 - 1
#: What of a wrong value is shown.
_SHOWN: Final = 80
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)


def fields(value: object, path: Path, table: Fields) -> dict[str, Any]:
    """The attributes of an object whose keys are in the table; unknown ones are refused."""
    found: dict[str, Any] = {}
    for key, item in mapping(value, path).items():
        if key not in table:
            raise InvalidPart(f"unknown key{nearest(key, table)}", (*path, key))
        if item is not None:
            attribute, read = table[key]
            found[attribute] = read(item, (*path, key))
    return found


def needed(found: Mapping[str, Any], path: Path, **keys: str) -> None:
    """That each attribute is there and not empty; ``keys`` gives its JSON name."""
    for attribute, key in keys.items():
        if attribute not in found:
            raise InvalidPart("is missing", (*path, key))
        if found[attribute] == "":
            raise InvalidPart("is empty", (*path, key))


def mapping(value: object, path: Path) -> Mapping[str, object]:
    """An object with any keys."""
    if not isinstance(value, Mapping):
        raise InvalidPart(f"{kind(value)} where an object is needed", path)
    return value


def sequence(value: object, path: Path) -> list[object]:
    """A list of anything."""
    if not isinstance(value, list):
        raise InvalidPart(f"{kind(value)} where a list is needed", path)
    return value


def each(read: Read[T]) -> Read[tuple[T, ...]]:
    """A list of what ``read`` reads."""

    def read_each(value: object, path: Path) -> tuple[T, ...]:
        items = sequence(value, path)
        return tuple(read(item, (*path, index)) for index, item in enumerate(items))

    return read_each


def text(value: object, path: Path) -> str:
    """A printable text. A number without quotes is its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        hint = "; quote it" if isinstance(value, bool) else ""
        raise InvalidPart(f"{kind(value)} where a text is needed{hint}", path)
    if len(value) > MAX_TEXT:
        raise InvalidPart(f"longer than {MAX_TEXT} characters", path)
    if not value.isprintable():
        raise InvalidPart(f"{value!r} has characters that cannot be printed", path)
    return value


def name(value: object, path: Path) -> str:
    """A text without a slash: parts of keys are joined by it."""
    found = text(value, path)
    if "/" in found:
        raise InvalidPart(f"{found!r} has a slash", path)
    return found


def flag(value: object, path: Path) -> bool:
    """``true`` or ``false``."""
    if not isinstance(value, bool):
        raise InvalidPart(f"{kind(value)} where true or false is needed", path)
    return value


def number(least: int, most: int) -> Read[int]:
    """A whole number of a range."""

    def read_number(value: object, path: Path) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidPart(f"{kind(value)} where a number is needed", path)
        if not least <= value <= most:
            raise InvalidPart(f"{value} is not within {least}-{most}", path)
        return value

    return read_number


def one_of(choices: Mapping[str, T]) -> Read[T]:
    """One of some names."""

    def read_one_of(value: object, path: Path) -> T:
        if not isinstance(value, str) or value not in choices:
            raise InvalidPart(f"{kind(value)} is none of {', '.join(choices)}", path)
        return choices[value]

    return read_one_of


def address(value: object, path: Path) -> bytes:
    """An IP address, in network order; a v4-mapped one becomes IPv4."""
    found = packed(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidPart(f"{kind(value)} is not an IP address", path)
    return found


def packed(written: str) -> bytes | None:
    """An IP address in network order, None when it is none. Zones mean nothing on other hosts."""
    try:
        found = ipaddress.ip_address(written)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.scope_id is not None:
        return None
    return unmapped(found).packed


def port_map(least_target: int) -> Read[tuple[tuple[int, int], ...]]:
    """``{"80": 8080}``; keys are numbers or their texts."""
    read_target = number(least_target, PORT_MAX)

    def read_ports(value: object, path: Path) -> tuple[tuple[int, int], ...]:
        pairs: dict[int, int] = {}
        for key, target in mapping(value, path).items():
            here = (*path, key)
            written = str(key)
            port = int(written) if _PORT.fullmatch(written) else 0
            if not 0 < port <= PORT_MAX:
                raise InvalidPart(f"{kind(key)} is not a port; ports are 1-{PORT_MAX}", here)
            if port in pairs:
                raise InvalidPart("the port is there twice", here)
            pairs[port] = read_target(target, here)
        return tuple(pairs.items())

    return read_ports


def nearest(key: object, known: Iterable[str]) -> str:
    """What to say after "unknown key"."""
    known = list(known)
    near = difflib.get_close_matches(str(key), known, n=1)
    return f"; did you mean {near[0]}" if near else f"; one of: {' '.join(known)}"


def kind(value: object) -> str:
    """What a value is, for messages."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    written = repr(value)
    return written if len(written) <= _SHOWN else written[:_SHOWN] + "…"
