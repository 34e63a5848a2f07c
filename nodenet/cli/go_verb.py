"""Verbs that take upstream's flags, and nodenet's global options beside them.

Upstream's flags and klog's are left to `go_flags`, which are also the ones that win where both know
a name. ``-v`` is klog's with a number, ``-v=4``, ``--v=4`` or ``-v 4``, and nodenet's without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from nodenet.cli.commands import Verb
from nodenet.konnectivity.go_flags import Flag, help_records, words_of


class GoVerb(Verb):
    """A verb whose function gets ``arguments``, a tuple of words, unparsed."""

    def __init__(self, *args: Any, flags: Sequence[Flag] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.flags = flags

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes in what is nodenet's own and keeps the rest as it is."""
        known = {flag.name: flag for flag in self.flags}
        values = self._options(ctx)
        upstream: list[str] = []
        own: list[str] = []
        at = 0
        while at < len(args):
            word = args[at]
            size = words_of(known, args, at) if word.startswith("-") else 0
            into = upstream
            if (word == "-v" and size == 1) or not size:
                size, into = _own(values, word), own
                if not size:
                    # a stray word or an unknown flag, of which upstream's parser complains
                    size, into = 1, upstream
            into += args[at : at + size]
            at += size
        super().parse_args(ctx, own)
        ctx.params["arguments"] = tuple(upstream)
        ctx.args = []
        return []

    def _options(self, ctx: click.Context) -> dict[str, bool]:
        """nodenet's options by spelling, and whether each takes a value."""
        return {
            name: not (option.is_flag or option.count)
            for option in self.get_params(ctx)
            if isinstance(option, click.Option)
            for name in option.opts
        }

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Upstream's flags."""
        with formatter.section("Flags"):
            formatter.write_dl(help_records(self.flags))
        formatter.write_paragraph()
        formatter.write_text(
            "klog's flags are taken and mean nothing, -v=4 too; -v and -vv are nodenet's, and its "
            "other global options work here as well: nodenet --help lists them."
        )


def _own(values: dict[str, bool], word: str) -> int:
    """Of how many words an option of nodenet's is: 2 with a value behind it, 0 when it is none."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        if name not in values:
            return 0
        return 2 if values[name] and not equals else 1
    # -port=1 and -port 1 are slips of --port, and not -p -o rt: values go with first letters only
    letters = word[1:] if word.startswith("-") and "=" not in word else ""
    if letters and values.get(f"-{letters[0]}"):
        return 1 if letters[1:] else 2
    return 1 if letters and all(values.get(f"-{each}") is False for each in letters) else 0
