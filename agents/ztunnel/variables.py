"""Environment variables in the forms that ztunnel's have (ztunnel: src/config.rs)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nodenet.errors import UsageError

_DURATION: Final = re.compile(
    r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m(?!s))?"
    r"(?:(?P<s>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+(?:\.\d+)?)ms)?",
    re.ASCII,
)
_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_WORDS: Final = {"true": True, "false": False}


class ConfigError(UsageError):
    """A setting has a value that cannot be used."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name}={value}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


def duration(env: Mapping[str, str], name: str, default: float, *, least: float = 0.001) -> float:
    """Seconds of a variable like ``10s``, ``5m``, ``1h30m``. ConfigError."""
    text = env.get(name)
    if text is None:
        return default
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise ConfigError(name, text, "not a duration; write e.g. 10s, 5m, 1h30m")
    seconds = sum(float(found[unit]) * scale for unit, scale in _SECONDS.items() if found[unit])
    if seconds < least:
        raise ConfigError(name, text, f"must be at least {least:g} seconds")
    return seconds


def number(env: Mapping[str, str], name: str, default: int, *, most: int) -> int:
    """A number from 1 to ``most``. ConfigError."""
    text = env.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
        raise ConfigError(name, text, f"must be a number from 1 to {most}")
    return int(text)


def switch(env: Mapping[str, str], name: str, default: bool) -> bool:
    """``true`` or ``false``. ConfigError."""
    text = env.get(name)
    if text is None:
        return default
    if text not in _WORDS:
        raise ConfigError(name, text, "must be true or false")
    return _WORDS[text]
