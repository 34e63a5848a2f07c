"""Command-line flags as upstream's programs take them, so that manifests work unchanged.

``--name=value``, ``--name value``, ``--flag``, ``--flag=false``, with ``_`` for ``-`` as well;
lists as ``a,b``, ``[a,b]`` or the flag repeated; durations as ``1h30m``, ``500ms``, ``0``. klog's
flags are taken and mean nothing here; what follows its ``-v`` is its own only when it is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nodenet.errors import UsageError

Value = str | int | float | bool | tuple[str, ...]


class Kind(Enum):
    """What a flag's value is."""

    TEXT = "string"
    NUMBER = "int"
    REAL = "float32"
    """A number with a fraction."""
    DURATION = "duration"
    """Seconds, a float."""
    SWITCH = "bool"
    LIST = "strings"
    """A tuple of texts."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. ``default`` is of the type that ``kind`` names."""

    name: str
    kind: Kind
    default: Value
    help: str
    hidden: bool = False
    """Taken, but not in the help: an older spelling, or of no effect here."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a command line said."""

    values: dict[str, Value]
    """Of every flag, the defaults included."""
    given: frozenset[str]
    """Names of the flags that were there."""
    ignored: tuple[str, ...]
    """Flags of klog that were there, as written."""

    def text(self, name: str) -> str:
        """The value of a TEXT flag."""
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def number(self, name: str) -> int:
        """The value of a NUMBER flag."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def real(self, name: str) -> float:
        """The value of a REAL flag."""
        value = self.values[name]
        assert isinstance(value, int | float)
        return float(value)

    def seconds(self, name: str) -> float:
        """The value of a DURATION flag."""
        value = self.values[name]
        assert isinstance(value, int | float)
        return float(value)

    def switch(self, name: str) -> bool:
        """The value of a SWITCH flag."""
        value = self.values[name]
        assert isinstance(value, bool)
        return value

    def list(self, name: str) -> tuple[str, ...]:
        """The value of a LIST flag."""
        value = self.values[name]
        assert isinstance(value, tuple)
        return value


#: Flags of klog; True: a switch, which takes no word after it.
KLOG: Final = {
    "add-dir-header": True,
    "alsologtostderr": True,
    "alsologtostderrthreshold": False,
    "legacy-stderr-threshold-behavior": True,
    "log-backtrace-at": False,
    "log-dir": False,
    "log-file": False,
    "log-file-max-size": False,
    "log-flush-frequency": False,
    "logtostderr": True,
    "one-output": True,
    "skip-headers": True,
    "skip-log-headers": True,
    "stderrthreshold": False,
    "v": False,
    "vmodule": False,
}

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_PART: Final = re.compile(r"([0-9]*\.?[0-9]+|[0-9]+\.)(ns|us|µs|μs|ms|s|m|h)")
_UNIT: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}


def parse(program: str, flags: Iterable[Flag], arguments: Sequence[str]) -> Parsed:
    """Reads ``arguments``. UsageError for unknown flags, bad values and stray words."""
    known = {flag.name: flag for flag in flags}
    values: dict[str, Value] = {name: flag.default for name, flag in known.items()}
    given: set[str] = set()
    ignored: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if not word.startswith("-") or word in ("-", "--"):
            raise UsageError(f"{program} takes flags only: {word!r}", hint=f"{program} --help")
        size = words_of(known, arguments, at)
        if not size:
            raise UsageError(f"unknown flag {word}: {program}", hint=f"{program} --help")
        at += size
        name, equals, text = _split(word)
        flag = known.get(name)
        if flag is None:
            ignored.append(word)
            continue
        if size == 2:
            if at > len(arguments):
                raise UsageError(f"--{name} needs a value", hint=f"--{name}={flag.kind.value}")
            text = arguments[at - 1]
        elif not equals:
            text = "true"
        value = convert(flag, text)
        if flag.kind is Kind.LIST and name in given:
            old = values[name]
            assert isinstance(old, tuple) and isinstance(value, tuple)
            value = old + value
        values[name] = value
        given.add(name)
    return Parsed(values, frozenset(given), tuple(ignored))


def words_of(known: Mapping[str, Flag], words: Sequence[str], at: int) -> int:
    """Of how many words the flag at ``at`` is: 2 with a value behind it, 0 when nobody knows it."""
    word = words[at]
    name, equals, _ = _split(word)
    flag = known.get(name)
    if flag is not None:
        if not word.startswith("--") and len(name) > 1:
            return 0
        return 1 if equals or flag.kind is Kind.SWITCH else 2
    if name not in KLOG:
        return 0
    if name == "v":
        # behind nodenet's own -v comes the next flag, which must not be lost
        return 2 if not equals and at + 1 < len(words) and words[at + 1].isdecimal() else 1
    return 1 if equals or KLOG[name] else 2


def _split(word: str) -> tuple[str, str, str]:
    """Name, ``=`` or nothing, and value."""
    name, equals, text = word.lstrip("-").partition("=")
    return name.replace("_", "-"), equals, text


def convert(flag: Flag, text: str) -> Value:
    """The value that ``text`` is for a flag. UsageError."""
    match flag.kind:
        case Kind.TEXT:
            return text
        case Kind.NUMBER:
            if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
                return int(text)
        case Kind.REAL:
            if re.fullmatch(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})", text):
                return float(text)
        case Kind.DURATION:
            seconds = duration(text)
            if seconds is not None:
                return seconds
        case Kind.SWITCH:
            if text in _TRUE or text in _FALSE:
                return text in _TRUE
        case Kind.LIST:
            inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
            return tuple(part.strip() for part in inner.split(",") if part.strip())
    raise UsageError(f"--{flag.name}={text}: not of type {flag.kind.value}", hint=_example(flag))


def duration(text: str) -> float | None:
    """Seconds of a duration as Go writes it; None when it is none."""
    sign, rest = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    at, seconds = 0, 0.0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            return None
        seconds += float(part[1]) * _UNIT[part[2]]
        at = part.end()
    return sign * seconds if rest else None


def go_duration(seconds: float) -> str:
    """As Go prints it: ``1h0m0s``, ``1.5s``, ``250ms``."""
    if not seconds:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours}h{minutes}m{rest:g}s"
    return f"{minutes}m{rest:g}s" if minutes else f"{rest:g}s"


def help_records(flags: Iterable[Flag]) -> list[tuple[str, str]]:
    """Name and help of each flag that is not hidden, for the command's ``--help``."""
    return [(_head(flag), _tail(flag)) for flag in flags if not flag.hidden]


def _head(flag: Flag) -> str:
    return f"--{flag.name}" if flag.kind is Kind.SWITCH else f"--{flag.name} {flag.kind.value}"


def _tail(flag: Flag) -> str:
    # 0s is worth showing; an empty text, no list and a switch that is off are not
    if flag.default in ("", (), False) and flag.kind is not Kind.DURATION:
        return flag.help
    return f"{flag.help} ({_shown(flag)})"


def _shown(flag: Flag) -> str:
    """The default as it would be written."""
    default = flag.default
    if flag.kind is Kind.DURATION:
        assert isinstance(default, int | float)
        return go_duration(float(default))
    return ",".join(default) if isinstance(default, tuple) else str(default).lower()


def _example(flag: Flag) -> str:
    if flag.default:
        return f"e.g. --{flag.name}={_shown(flag)}"
    examples = {
        Kind.NUMBER: "1",
        Kind.REAL: "7.5",
        Kind.DURATION: "1m30s",
        Kind.SWITCH: "true",
        Kind.LIST: "a,b",
        Kind.TEXT: "text",
    }
    return f"e.g. --{flag.name}={examples[flag.kind]}"
