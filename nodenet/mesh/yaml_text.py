"""YAML as far as mesh files need it: objects, lists and scalars, with the line of every fault.

Read from PyYAML's events and never constructed, so no tag can make an object and nesting cannot
exhaust the stack. Scalars are what YAML 1.2 says, not what PyYAML guesses: ``on`` is a text,
``1.10`` keeps its zero. Keys are texts; a key that is there twice is a fault.

Lines are not kept beside the values. Who finds a fault in them asks `line_of`, which reads the text
once more: faults are rare and end the reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import yaml

from nodenet.mesh.policy import Path

#: Values in one file, those behind aliases counted each time: some 25,000 workloads. It stops a
#: file of a few lines from unfolding to gigabytes.
MAX_VALUES: Final = 1_000_000
#: Levels of objects and lists. Policies need seven.
MAX_DEPTH: Final = 32

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_NOTHING: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {"true": True, "True": True, "false": False, "False": False}
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlFault(ValueError):
    """Text that cannot be read. ``line`` counts from 1, ``reason`` stands without the place."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def parse(text: str) -> object:
    """What the text says, in dict, list, str, int, bool and None. YamlFault: it is not YAML."""
    return _Reading(()).read(text)


def line_of(text: str, path: Path) -> int:
    """The line, from 1, of the value at ``path`` or of the nearest one around it.

    ``text`` is one that `parse` has read.
    """
    reading = _Reading(path)
    reading.read(text)
    return reading.line


@dataclass(slots=True)
class _Open:
    """An object or list whose end has not come."""

    value: dict[str, object] | list[object]
    wanted: bool
    """Lies on the path whose line is asked for."""
    anchor: str | None
    size_before: int
    key: str | None = None
    key_line: int = 0
    key_lines: dict[str, int] = field(default_factory=dict)


class _Reading:
    """One pass through a text. ``line`` becomes that of ``path``."""

    def __init__(self, path: Path) -> None:
        self.line = 1
        self._path = path
        self._open: list[_Open] = []
        self._size = 0
        self._anchors: dict[str, tuple[object, int]] = {}
        self._root: object = None
        self._documents = 0

    def read(self, text: str) -> object:
        for event in _events(text):
            self._take(event, event.start_mark.line + 1)
        return self._root

    def _take(self, event: yaml.Event, line: int) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise YamlFault(line, "a second document; a mesh file has one")
            case yaml.ScalarEvent():
                _no_tag(event.tag, line)
                if self._awaits_key():
                    self._take_key(event.value, line)
                    return
                value = event.value if event.style else _plain(event.value)
                self._count(1, line)
                self._place(value, line)
                self._remember(event.anchor, value, 1)
            case yaml.AliasEvent():
                if self._awaits_key():
                    raise YamlFault(line, "an alias where a key is needed")
                if event.anchor not in self._anchors:
                    raise YamlFault(line, f"*{event.anchor} stands for nothing yet")
                value, size = self._anchors[event.anchor]
                self._count(size, line)
                self._place(value, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                ended = self._open.pop()
                self._remember(ended.anchor, ended.value, self._size - ended.size_before)

    def _begin(self, event: yaml.CollectionStartEvent, line: int) -> None:
        _no_tag(event.tag, line)
        if self._awaits_key():
            raise YamlFault(line, "a list or an object where a key is needed")
        if len(self._open) >= MAX_DEPTH:
            raise YamlFault(line, f"more than {MAX_DEPTH} levels")
        before = self._size
        self._count(1, line)
        value: dict[str, object] | list[object]
        value = {} if isinstance(event, yaml.MappingStartEvent) else []
        wanted = self._place(value, line)
        self._open.append(_Open(value, wanted, event.anchor, before))

    def _awaits_key(self) -> bool:
        if not self._open:
            return False
        top = self._open[-1]
        return isinstance(top.value, dict) and top.key is None

    def _take_key(self, key: str, line: int) -> None:
        top = self._open[-1]
        first = top.key_lines.get(key)
        if first is not None:
            raise YamlFault(line, f"{key!r} is there twice, first in line {first}")
        top.key_lines[key] = line
        top.key, top.key_line = key, line

    def _place(self, value: object, line: int) -> bool:
        """Puts a value where it belongs; whether it lies on the path."""
        if not self._open:
            self._root = value
            return True
        top = self._open[-1]
        step: str | int
        if isinstance(top.value, list):
            step = len(top.value)
            top.value.append(value)
        else:
            assert top.key is not None  # _awaits_key has seen to that
            step, line = top.key, top.key_line
            top.value[top.key] = value
            top.key = None
        depth = len(self._open) - 1
        if not top.wanted or depth >= len(self._path) or self._path[depth] != step:
            return False
        self.line = line
        return True

    def _count(self, size: int, line: int) -> None:
        self._size += size
        if self._size > MAX_VALUES:
            raise YamlFault(line, f"more than {MAX_VALUES} values")

    def _remember(self, anchor: str | None, value: object, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)


def _events(text: str) -> Iterator[yaml.Event]:
    """PyYAML's events; its errors as YamlFault."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise YamlFault(line, error.problem or error.context or "not YAML") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = error.character
        number = character if isinstance(character, int) else ord(character)
        raise YamlFault(line, f"character U+{number:04X} is not allowed") from error
    except UnicodeEncodeError as error:
        # half of a surrogate pair: PyYAML hands the text to libyaml as UTF-8
        line = text.count("\n", 0, error.start) + 1
        raise YamlFault(line, "a character that UTF-8 does not have") from error


def _no_tag(tag: str | None, line: int) -> None:
    if tag is not None and tag != "!":
        raise YamlFault(line, f"tag {tag!r}; values are written without tags")


def _plain(text: str) -> object:
    """An unquoted scalar."""
    if text in _NOTHING:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    return int(text) if _INTEGER.fullmatch(text) else text
