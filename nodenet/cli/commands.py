"""click's groups and commands with nodenet's grammar: prefixes, plurals, global options anywhere.

Object modules use `object_group` and `ObjectGroup.command`, nothing else of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from nodenet.cli import prefix
from nodenet.cli.globals import GLOBAL_OPTIONS, of
from nodenet.errors import UsageError

#: -h as well as --help, everywhere.
CONTEXT = {"help_option_names": ["-h", "--help"]}
#: Where completion ends when a word means nothing: a command that offers nothing.
_NOTHING = click.Command("nothing", add_help_option=False)
_GLOBALS_SEEN = "Global options work here too; nodenet --help lists them."


class GlobalOptionsMixin(click.Command):
    """A command that takes the global options besides its own."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["context_settings"] = CONTEXT | attributes.get("context_settings", {})
        super().__init__(*args, **attributes)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, then --help, then the global options."""
        own = super().get_params(ctx)
        # a verb may mean something else by a letter (upstream's flags); then its own wins
        taken = {name for param in own for name in param.opts}
        return own + [o for o in GLOBAL_OPTIONS if not taken.intersection(o.opts)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, but every complaint knows which command it is about."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The example; no line ends inside an option, so that it can be copied."""
        if self.epilog:
            from textwrap import fill

            indent = " " * 2
            formatter.write_paragraph()
            formatter.write(
                fill(
                    self.epilog,
                    formatter.width,
                    initial_indent=indent,
                    subsequent_indent=indent,
                    break_on_hyphens=False,
                    break_long_words=False,
                )
                + "\n"
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Only the command's own options; one line stands for the global ones."""
        own = (param.get_help_record(ctx) for param in super().get_params(ctx))
        records = [record for record in own if record]
        if records:
            with formatter.section("Options"):
                formatter.write_dl(records)
        formatter.write_paragraph()
        formatter.write_text(_GLOBALS_SEEN)


class Verb(GlobalOptionsMixin):
    """One verb of an object, or an object that has none (`doctor`)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb once every global option is known, wherever it stood."""
        of(ctx).settle()
        return super().invoke(ctx)


class ObjectGroup(GlobalOptionsMixin, click.Group):
    """The verbs of one object.

    ``aliases`` maps further words to verbs: ``{"list": "show"}`` where both mean the same.
    """

    command_class = Verb
    #: What is not there when the command line ends after the group.
    missing = "a verb"

    def __init__(
        self, *args: Any, aliases: Mapping[str, str] | None = None, **attributes: Any
    ) -> None:
        attributes.setdefault("no_args_is_help", False)
        super().__init__(*args, **attributes)
        self.aliases = dict(aliases or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order they are written, which is the order of the documentation."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs, then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a verb."""
        verbs = [(n, c.get_short_help_str(90)) for n, c in self.commands.items() if not c.hidden]
        with formatter.section("Verbs"):
            formatter.write_dl(verbs)

    def visible(self) -> list[str]:
        """The verbs a user may be told of."""
        return [name for name, command in self.commands.items() if not command.hidden]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click, but a missing verb is an error that names them all."""
        rest = super().parse_args(ctx, args)
        if not _positional(ctx) and not ctx.resilient_parsing:
            raise UsageError(
                f"{self.name} needs {self.missing}", hint=f"one of: {' '.join(self.visible())}"
            )
        return rest

    def find(self, token: str) -> str:
        """The verb that ``token`` means; `prefix.UnknownName` or `prefix.AmbiguousName`."""
        hidden = [name for name, command in self.commands.items() if command.hidden]
        if token in hidden:
            return token
        return prefix.match(
            token, self.visible(), what=f"verb of {self.name}", aliases=self.aliases
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command for the first word of ``args``, by `find`."""
        try:
            name = self.find(args[0])
        except UsageError:
            if ctx.resilient_parsing:  # completion of words that mean nothing yet
                return args[0], _NOTHING, args[1:]
            raise
        return name, self.get_command(ctx, name), args[1:]


def _positional(ctx: click.Context) -> list[str]:
    """What is left for the verb and its arguments after a group's own options."""
    return [*ctx._protected_args, *ctx.args]


def object_group(
    name: str, *, aliases: Mapping[str, str] | None = None, epilog: str | None = None
) -> Callable[[Callable[..., Any]], ObjectGroup]:
    """Decorator that makes the ``command`` of an object module from a function with a docstring.

    The function's body runs before each verb and is usually empty.
    """

    def make(function: Callable[..., Any]) -> ObjectGroup:
        decorated = click.group(name, cls=ObjectGroup, aliases=aliases, epilog=epilog)(function)
        assert isinstance(decorated, ObjectGroup)
        return decorated

    return make


def object_command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Verb]:
    """As `object_group` for an object without verbs."""

    def make(function: Callable[..., Any]) -> Verb:
        return click.command(name, cls=Verb, **attributes)(function)

    return make
