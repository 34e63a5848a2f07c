"""Readers of single values: what they take and what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodenet.mesh import reading
from nodenet.mesh.policy import InvalidPart, Path

PATH: Path = ("a", 0)
Read = Callable[[object, Path], Any]
PORT = reading.number(1, 65535)


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (reading.text, "a b", "a b"),
        (reading.text, 110, "110"),
        (reading.name, "web.example", "web.example"),
        (reading.flag, True, True),
        (PORT, 80, 80),
        (reading.one_of({"A": 1}), "A", 1),
        (reading.address, "10.0.0.1", b"\x0a\0\0\1"),
        (reading.address, "::ffff:10.0.0.1", b"\x0a\0\0\1"),
        (reading.address, "fd00::1", bytes.fromhex("fd" + "00" * 14 + "01")),
        (reading.each(PORT), [1, 2], (1, 2)),
        (reading.each(PORT), [], ()),
        (reading.port_map(0), {"80": 8080, "81": 0}, ((80, 8080), (81, 0))),
        (reading.port_map(0), {}, ()),
    ],
)
def test_taken(read: Read, value: object, expected: object) -> None:
    assert read(value, PATH) == expected


@pytest.mark.parametrize(
    ("read", "value", "path", "reason"),
    [
        (reading.text, True, PATH, "True where a text is needed; quote it"),
        (reading.text, None, PATH, "nothing where a text is needed"),
        (reading.text, [], PATH, "a list where a text is needed"),
        (reading.text, "a\nb", PATH, "cannot be printed"),
        (reading.text, "\ud800", PATH, "cannot be printed"),
        (reading.text, "x" * 3000, PATH, "longer than 2048"),
        (reading.name, "a/b", PATH, "'a/b' has a slash"),
        (reading.flag, "yes", PATH, "'yes' where true or false is needed"),
        (reading.flag, 1, PATH, "1 where true or false is needed"),
        (PORT, "80", PATH, "'80' where a number is needed"),
        (PORT, True, PATH, "True where a number is needed"),
        (PORT, 0, PATH, "0 is not within 1-65535"),
        (PORT, 65536, PATH, "65536 is not within 1-65535"),
        (reading.one_of({"A": 1, "B": 2}), "a", PATH, "'a' is none of A, B"),
        (reading.one_of({"A": 1}), [], PATH, "a list is none of A"),
        (reading.address, "10.0.0.256", PATH, "'10.0.0.256' is not an IP address"),
        (reading.address, "fe80::1%eth0", PATH, "is not an IP address"),
        (reading.address, 1, PATH, "1 is not an IP address"),
        (reading.each(PORT), {}, PATH, "an object where a list is needed"),
        (reading.each(PORT), [1, 0], (*PATH, 1), "0 is not within"),
        (reading.port_map(0), [80], PATH, "a list where an object is needed"),
        (reading.port_map(0), {"0": 1}, (*PATH, "0"), "not a port"),
        (reading.port_map(0), {"65536": 1}, (*PATH, "65536"), "not a port"),
        (reading.port_map(0), {"9" * 5000: 1}, (*PATH, "9" * 5000), "not a port"),
        (reading.port_map(0), {"http": 1}, (*PATH, "http"), "'http' is not a port"),
        (reading.port_map(0), {"80": 1, "080": 2}, (*PATH, "080"), "twice"),
        (reading.port_map(1), {"80": 0}, (*PATH, "80"), "0 is not within"),
        (reading.port_map(0), {"80": None}, (*PATH, "80"), "nothing where a number"),
        (reading.mapping, "x" * 200, PATH, "x… where an object is needed"),
    ],
    # the same in every run: no address of a function
    ids=lambda value: getattr(value, "__qualname__", repr(value))[:30],
)
def test_refused(read: Read, value: object, path: Path, reason: str) -> None:
    with pytest.raises(InvalidPart) as caught:
        read(value, PATH)
    assert caught.value.path == path
    assert reason in caught.value.reason


FIELDS: reading.Fields = {"protocol": ("protocol", reading.text), "port": ("port", PORT)}


def test_fields() -> None:
    found = reading.fields({"protocol": "TCP", "port": None}, PATH, FIELDS)
    assert found == {"protocol": "TCP"}


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        ({"protocl": "TCP"}, "protocl", "unknown key; did you mean protocol"),
        ({"zzz": "TCP"}, "zzz", "unknown key; one of: protocol port"),
        ({"port": 0}, "port", "0 is not within 1-65535"),
    ],
)
def test_fields_refused(value: object, key: str, reason: str) -> None:
    with pytest.raises(InvalidPart) as caught:
        reading.fields(value, PATH, FIELDS)
    assert (caught.value.path, caught.value.reason) == ((*PATH, key), reason)


@pytest.mark.parametrize(("found", "reason"), [({}, "is missing"), ({"protocol": ""}, "is empty")])
def test_needed(found: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidPart) as caught:
        reading.needed(found, PATH, protocol="Protocol")
    assert (caught.value.path, caught.value.reason) == ((*PATH, "Protocol"), reason)
    reading.needed({"protocol": "x"}, PATH, protocol="Protocol")
