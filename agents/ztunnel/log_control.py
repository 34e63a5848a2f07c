"""Which lines are logged: the filter of RUST_LOG and of ``/logging``, and changing it for a while.

A filter is a list with commas: a level (``info``) for everything, and ``target=level`` for parts of
the program: ``info,access=off,ztunnel::pods=debug``. Later entries win. A target is the scope of a
log line, with dots or colons: ``access``, ``ztunnel``, ``ztunnel.pods``, ``nodenet.httpd``.
Grammar: ztunnel: src/telemetry.rs, without spans and patterns.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodenet.errors import UsageError
from nodenet.times import rfc3339_ns

#: Words of a filter, by `logging` level.
LEVELS: Final = {
    "off": logging.CRITICAL + 10,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": 5,
}
_ALSO: Final = {"warning": "warn"}
_TARGET: Final = re.compile(r"[a-z_][a-z0-9_]*((::|\.)[a-z_][a-z0-9_]*)*")
#: The target of the access log, which is not one of `logging`'s.
ACCESS: Final = "access"
#: Entries of a filter; it comes from a request.
MAX_TARGETS: Final = 64
#: Longest time a level may be set for: a day.
MAX_SECONDS: Final = 86_400.0


class FilterError(UsageError):
    """A text is no filter."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"log filter {text!r}: {reason}", hint="e.g. info,access=off")
        self.text = text
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Levels by target; the words of `LEVELS`."""

    level: str = "info"
    """Of everything without an entry of its own."""
    targets: dict[str, str] = field(default_factory=dict)
    """With dots between the parts of a name."""

    @classmethod
    def parse(cls, text: str) -> LogFilter:
        """Reads a filter on its own; FilterError."""
        return cls().merged(text)

    def merged(self, text: str) -> LogFilter:
        """This filter with the entries of ``text`` added, which win. FilterError."""
        level, targets = self.level, dict(self.targets)
        for entry in text.split(","):
            target, equals, word = entry.strip().rpartition("=")
            word = _level(text, word)
            if not equals:
                level = word
                continue
            if not _TARGET.fullmatch(target):
                raise FilterError(text, f"{target!r} is not a target")
            name = target.replace("::", ".")
            targets.pop(name, None)
            targets[name] = word
        if len(targets) > MAX_TARGETS:
            raise FilterError(text, f"more than {MAX_TARGETS} targets")
        return LogFilter(level, targets)

    def __str__(self) -> str:
        return ",".join([self.level, *(f"{name}={word}" for name, word in self.targets.items())])

    def number(self, target: str) -> int:
        """The level in force for a target, as `logging` numbers it."""
        return LEVELS[self.targets.get(target, self.level)]


def _level(text: str, word: str) -> str:
    found = _ALSO.get(word.lower(), word.lower())
    if found not in LEVELS:
        raise FilterError(text, f"{word!r} is not a level: {' '.join(LEVELS)}")
    return found


def logger_of(target: str) -> str:
    """The name of the logger whose lines have this scope (`nodenet.agents.ztunnel.logs`)."""
    if target == "nodenet" or target.startswith("nodenet."):
        return target
    return f"nodenet.agents.{target}"


class LogControl:
    """The filter in force and the one the process was started with."""

    def __init__(self, initial: LogFilter, apply: Callable[[LogFilter], None]) -> None:
        """``apply`` puts a filter into force; it is called at once."""
        self.initial = initial
        self.current = initial
        self.until_ns: int | None = None
        """Unix time at which the filter goes back by itself, None: never."""
        self._apply = apply
        self._timer: asyncio.TimerHandle | None = None
        apply(initial)

    @property
    def until(self) -> str | None:
        """The same as RFC 3339."""
        return None if self.until_ns is None else rfc3339_ns(self.until_ns)

    def change(
        self, add: str | None, *, reset: bool = False, seconds: float | None = None, now_ns: int
    ) -> None:
        """Goes back to the first filter (``reset``), then adds entries. FilterError.

        With ``seconds`` the filter of before comes back after them; a change without forgets that.
        """
        if seconds is not None and not 0 < seconds <= MAX_SECONDS:
            raise FilterError(str(add), f"{seconds:g} seconds: give up to {MAX_SECONDS:g}")
        before = self.current
        wanted = self.initial if reset else before
        if add is not None:
            wanted = wanted.merged(add)
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.until_ns = None, None
        self._put(wanted)
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._back, before)
            self.until_ns = now_ns + int(seconds * 1e9)

    def close(self) -> None:
        """Forgets what was to come back."""
        if self._timer is not None:
            self._timer.cancel()

    def _back(self, before: LogFilter) -> None:
        self._timer, self.until_ns = None, None
        self._put(before)

    def _put(self, wanted: LogFilter) -> None:
        self.current = wanted
        self._apply(wanted)


class Loggers:
    """Puts filters into force on the loggers of this process."""

    def __init__(self) -> None:
        self._set: set[str] = set()

    def apply(self, wanted: LogFilter) -> None:
        """Levels of ``nodenet`` and of the targets; those of an earlier filter are taken back."""
        for name in self._set:
            logging.getLogger(name).setLevel(logging.NOTSET)
        logging.getLogger("nodenet").setLevel(LEVELS[wanted.level])
        self._set = {logger_of(target) for target in wanted.targets if target != ACCESS}
        for target, word in wanted.targets.items():
            if target != ACCESS:
                logging.getLogger(logger_of(target)).setLevel(LEVELS[word])
