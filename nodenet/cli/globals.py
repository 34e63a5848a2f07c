"""The options every command takes, before the object and after the verb, and what they decide.

They are appended to each command's parameters by `nodenet.cli.commands`; their values are merged
into one `Globals`, which is click's ``ctx.obj``. A value given at two places is the later one's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import click

from nodenet.cli import style
from nodenet.cli.params import COUNT, SecondsType
from nodenet.errors import UsageError
from nodenet.paths import Instance, choose_instance

#: Seconds between two rounds of --watch at least: faster is a stream's business.
LEAST_WATCH = 0.1


class Format(Enum):
    """The values of ``-o``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(slots=True)
class Globals:
    """State of one run: the global options, those of list verbs, and what has been printed.

    Filled while the command line is parsed, read by the command. Commands print through
    `nodenet.cli.output` and seldom look in here, except for ``instance`` and ``notice``.
    """

    json: bool = False
    pretty: bool = False
    output: Format | None = None
    headers: bool = True
    color: str = "auto"
    quiet: bool = False
    verbose: int = 0
    id: str | None = None

    exact: bool = False
    fail_empty: bool = False
    sort: str | None = None
    limit: int | None = None
    watch: float | None = None
    """Seconds between two rounds of --watch, None without it."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    documents: int = 0
    """JSON documents printed so far: an error adds one only when there is none yet."""
    streaming: bool = False
    """Whether stdout is JSON Lines, where an error is one line more."""

    @property
    def format(self) -> Format:
        """What to print. UsageError when -j and -o ask for different things."""
        if self.json or self.pretty:
            if self.output not in (None, Format.JSON):
                flag = "-j" if self.json else "-p"
                raise UsageError(f"{flag} and -o {self.output.value} ask for two formats; give one")
            return Format.JSON
        return self.output or Format.TABLE

    @property
    def instance(self) -> Instance:
        """Which set of kernel objects: ``--id``, NODENET_ID, the host's, else the lab's."""
        return choose_instance(self.id, dict(self.environ))

    @property
    def own_instance(self) -> Instance:
        """Of daemons without kernel objects: ``--id``, NODENET_ID, else always the host's.

        Where such a daemon answers must not depend on whether there is a lab at the moment.
        """
        return Instance(self.id or self.environ.get("NODENET_ID") or None)

    @property
    def style(self) -> style.Style:
        """How text is to be rendered on the stdout of now."""
        return style.of_stdout(
            choice=self.color,
            environ=self.environ,
            headers=self.headers,
            wide=self.format is Format.WIDE,
            exact=self.exact,
        )

    def settle(self) -> None:
        """Checks the options against each other and starts the log that -v asks for."""
        _ = self.format
        if self.verbose:
            import logging

            level = logging.INFO if self.verbose == 1 else logging.DEBUG
            form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
            logging.basicConfig(level=level, format=form)

    def notice(self, message: str) -> None:
        """One line on stderr that is not the answer and not an error; -q silences it."""
        if not self.quiet:
            click.echo(f"nodenet: {' '.join(message.split())}", err=True)


#: Passes the `Globals` as the first argument of a command's function.
pass_globals = click.make_pass_decorator(Globals)


def of(ctx: click.Context) -> Globals:
    """The state of this run."""
    return ctx.ensure_object(Globals)


def _store(attribute: str, value: Callable[[Any], Any] = lambda v: v) -> Any:
    """A click callback that keeps a value when the option was given."""

    def keep(ctx: click.Context, _param: click.Parameter, given: Any) -> None:
        if given is not None and given is not False and given != 0:
            setattr(of(ctx), attribute, value(given))

    return keep


def _store_number(attribute: str) -> Any:
    """As `_store`, for numbers where 0 is a value."""

    def keep(ctx: click.Context, _param: click.Parameter, given: float | None) -> None:
        if given is not None:
            setattr(of(ctx), attribute, given)

    return keep


def _checked_id(text: str) -> str:
    return Instance(text).id or text


def _flag(*names: str, attribute: str, help: str, value: object = True) -> click.Option:
    return click.Option(
        [*names, f"_{attribute}"], is_flag=True, expose_value=False, help=help,
        callback=_store(attribute, lambda _: value),
    )  # fmt: skip


GLOBAL_OPTIONS: Sequence[click.Option] = (
    _flag("-j", "--json", attribute="json", help="JSON on stdout, also when it fails."),
    _flag("-p", "--pretty", attribute="pretty", help="Indented JSON; implies -j."),
    click.Option(
        ["-o", "--output", "_output"],
        type=click.Choice([f.value for f in Format]), expose_value=False,
        callback=_store("output", Format), help="Form of the answer.",
    ),
    _flag("--no-headers", attribute="headers", value=False, help="Tables without their header."),
    click.Option(
        ["--color", "_color"],
        type=click.Choice(["auto", "always", "never"]), expose_value=False,
        callback=_store("color"), help="Colour of state words.",
    ),
    _flag("-q", "--quiet", attribute="quiet", help="No notices and no progress."),
    click.Option(
        ["-v", "--verbose", "_verbose"], count=True, expose_value=False,
        callback=_store("verbose"), help="Log to stderr and causes of errors; -vv: traceback.",
    ),
    click.Option(
        ["--id", "_id"], metavar="ID", expose_value=False,
        callback=_store("id", _checked_id), help="Instance: a lab or test instead of the host's.",
    ),
)  # fmt: skip

_EXACT = click.option(
    "--exact", "_exact", is_flag=True, expose_value=False, callback=_store("exact"),
    help="Integers instead of 12.4K, 3m12s, 18ms.",
)  # fmt: skip
_FAIL_EMPTY = click.option(
    "--fail-empty", "_fail_empty", is_flag=True, expose_value=False,
    callback=_store("fail_empty"), help="Exit 4 when the list is empty.",
)  # fmt: skip
_SORT = click.option(
    "--sort", "_sort", metavar="KEY", expose_value=False, callback=_store("sort"),
    help="Sort by this JSON key, -KEY descending.",
)  # fmt: skip
_LIMIT = click.option(
    "--limit", "_limit", metavar="N", type=COUNT, expose_value=False,
    callback=_store_number("limit"), help="At most N rows; stderr says how many were left out.",
)  # fmt: skip
_WATCH = click.option(
    "-w", "--watch", "_watch", metavar="[SECONDS]", is_flag=False, flag_value=2.0,
    type=SecondsType(LEAST_WATCH), expose_value=False, callback=_store_number("watch"),
    help="Again every SECONDS (2); with -j JSON Lines, one object a change.",
)  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])


def list_options(function: _F) -> _F:
    """Decorator of verbs that `emit_list`: --sort --limit --fail-empty --exact --watch."""
    return _SORT(_LIMIT(_FAIL_EMPTY(_EXACT(_WATCH(function)))))


def report_options(function: _F) -> _F:
    """Decorator of verbs that `emit_report` something that can change: --exact --watch."""
    return _EXACT(_WATCH(function))
