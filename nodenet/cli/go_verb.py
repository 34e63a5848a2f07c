"""Verbs that take upstream's flags: everything after the verb is left to `go_flags`.

Of nodenet's own options only ``-h``, ``--help`` and ``--id ID`` are taken there; the others stand
before the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from nodenet.cli.commands import Verb
from nodenet.cli.globals import of
from nodenet.errors import UsageError
from nodenet.konnectivity.go_flags import Flag, help_records
from nodenet.paths import Instance


class GoVerb(Verb):
    """A verb whose function gets ``arguments``, a tuple of words, unparsed."""

    def __init__(self, *args: Any, flags: Sequence[Flag] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.flags = flags

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes out what is nodenet's own and keeps the rest as it is."""
        rest: list[str] = []
        words = iter(args)
        for word in words:
            if word in ("-h", "--help"):
                click.echo(self.get_help(ctx), color=ctx.color)
                ctx.exit()
            elif word == "--id" or word.startswith("--id="):
                value = next(words, None) if word == "--id" else word.partition("=")[2]
                if not value:
                    raise UsageError("--id needs a value", hint="--id=lab")
                of(ctx).id = Instance(value).id
            else:
                rest.append(word)
        ctx.params["arguments"] = tuple(rest)
        ctx.args = []
        return []

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Upstream's flags."""
        with formatter.section("Flags"):
            formatter.write_dl(help_records(self.flags))
        formatter.write_paragraph()
        formatter.write_text("klog's flags are taken and mean nothing; nodenet -v says more.")
