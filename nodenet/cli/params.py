"""Types of options and arguments whose errors say what to write instead."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from nodenet.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from nodenet.endpoint import Endpoint


def spelling(param: click.Parameter | None) -> str:
    """``--state`` of an option, ``POD`` of an argument."""
    if param is None:
        return "argument"
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.human_readable_name.upper()


class OneOf(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """One of a few words. With ``many`` also several with commas between, as a tuple.

    ``unknown state CLOSING_WAIT in --state; one of: established syn-sent``.
    """

    name = "word"

    def __init__(self, what: str, words: Collection[str], *, many: bool = False) -> None:
        self.what = what
        self.words = tuple(words)
        self.many = many

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The words themselves where they are few."""
        text = "|".join(self.words)
        return text if len(text) <= 40 else self.what.upper()

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | tuple[str, ...]:
        """The word, or the tuple of words; UsageError names those there are."""
        if isinstance(value, tuple):
            return value
        given = str(value).split(",") if self.many else [str(value)]
        for word in given:
            if word not in self.words:
                raise UsageError(
                    f"unknown {self.what} {word} in {spelling(param)}",
                    hint=f"one of: {' '.join(self.words)}",
                )
        return tuple(given) if self.many else given[0]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The words that begin so."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(w) for w in self.words if w.startswith(incomplete)]


class EndpointType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """``10.0.0.1:80``, ``[fd00::1]:80``, ``svc.ns:80`` or ``NS/POD:80``."""

    name = "endpoint"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Endpoint:
        """`nodenet.endpoint.parse_endpoint`."""
        from nodenet.endpoint import Endpoint, parse_endpoint

        return value if isinstance(value, Endpoint) else parse_endpoint(str(value))


class PortType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """A port of 1 to 65535."""

    name = "port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """`nodenet.endpoint.parse_port`; the error names the option."""
        from nodenet.endpoint import parse_port

        if isinstance(value, int):
            return value
        return parse_port(str(value), f"{spelling(param)} {value}")


class CountType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """A number of things, ``least`` or more."""

    name = "number"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number; UsageError names the option."""
        if isinstance(value, int):
            return value
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise UsageError(f"{text} is not a number in {spelling(param)}", hint="write e.g. 10")
        if int(text) < self.least:
            raise UsageError(f"{spelling(param)} {text}: must be at least {self.least}")
        return int(text)


class SecondsType(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """A length of time, ``500ms``, ``5s``, ``10m``, ``2h``, ``3d`` or seconds as a number."""

    name = "duration"
    _UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds; UsageError with an example."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value)
        for unit in ("ms", "s", "m", "h", "d", ""):
            number = text.removesuffix(unit)
            if (unit and number == text) or not number:
                continue
            try:
                seconds = float(number) * self._UNITS.get(unit, 1.0)
            except ValueError:
                break
            if self.least <= seconds < float("inf"):
                return seconds
            break
        least = f" of {self.least:g}s or more" if self.least else ""
        raise UsageError(
            f"{text} is not a length of time{least} in {spelling(param)}", hint="write e.g. 10s"
        )


ENDPOINT = EndpointType()
PORT = PortType()
COUNT = CountType()
SECONDS = SecondsType()
