"""Upstream's flags, as the tests of both processes write them down."""

from __future__ import annotations

from nodenet.konnectivity.go_flags import go_duration


def flag_table(text: str) -> dict[str, str]:
    """From ``name default|name default|...`` to the default by name."""
    entries = (entry.split() for entry in text.split("|"))
    return {name: " ".join(default) for name, *default in entries}


def shown(value: object) -> str:
    """A default as upstream's usage text has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return go_duration(value)
    return "" if value == () else str(value)
