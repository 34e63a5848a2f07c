"""One run of the command line: parse, call, and report what went wrong in one place."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from nodenet.cli.globals import Format, Globals
from nodenet.cli.root import root

#: Options of one letter that take a value: what follows the letter is no further flag.
_VALUE_LETTERS = "onwf"


def run(arguments: Sequence[str], tree: click.Command = root) -> int:
    """Runs a command line on a command tree and returns the exit status.

    KeyboardInterrupt and BrokenPipeError are left to `nodenet.cli.main`.
    """
    state = Globals()
    _prepare_streams()
    try:
        # click's own Command.main prints and exits by itself; errors have one way out here
        with tree.make_context("nodenet", list(arguments), obj=state) as context:
            status = tree.invoke(context)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as leave:
        sys.stdout.flush()
        return leave.exit_code
    except (Exception, BaseExceptionGroup) as error:
        from nodenet.cli import failures  # a command that goes well does without

        inner = failures.innermost(error)
        if isinstance(inner, click.Abort):
            raise KeyboardInterrupt from None
        if isinstance(inner, BrokenPipeError) or not isinstance(inner, Exception):
            raise inner from None
        return report(inner, state, arguments)


def report(error: Exception, state: Globals, arguments: Sequence[str]) -> int:
    """Prints the error, on stderr and with -j on stdout, and returns its exit status."""
    from nodenet.cli import failures

    wants_json, verbose = glance(arguments)
    verbose = max(verbose, state.verbose)
    failure = failures.describe(error)
    text = failure.line + "\n"
    if verbose:
        text += "".join(f"  caused by: {cause}\n" for cause in failures.causes(error))
    if verbose > 1:
        text += failures.trace(error)
    try:
        if (wants_json or _is_json(state)) and (state.streaming or not state.documents):
            import msgspec

            sys.stdout.write(msgspec.json.encode(failure.document()).decode() + "\n")
        sys.stdout.flush()
    except OSError as unwritable:
        if isinstance(unwritable, BrokenPipeError):
            raise
        # stdout is full or gone: the line on stderr is all there can be
    finally:
        sys.stderr.write(text)
        sys.stderr.flush()
    return failure.exit


def _is_json(state: Globals) -> bool:
    return state.json or state.pretty or state.output is Format.JSON


def glance(arguments: Sequence[str]) -> tuple[bool, int]:
    """Whether JSON was asked for and how many -v, read without parsing.

    For errors of the parsing itself: `conn list -j --bogus` must answer in JSON although the
    options were never taken in. Words after ``--`` belong to another command.
    """
    wants_json, verbose = False, 0
    words = iter(arguments)
    for word in words:
        if word == "--":
            break
        if word in ("-o", "--output"):
            wants_json |= next(words, "") == "json"
        elif word.startswith("--"):
            wants_json |= word in ("--json", "--pretty", "--output=json")
            verbose += word == "--verbose"
        elif word.startswith("-"):
            flags = word[1:]
            end = min((flags.find(x) for x in _VALUE_LETTERS if x in flags), default=len(flags))
            wants_json |= "j" in flags[:end] or "p" in flags[:end] or flags[end:] == "ojson"
            verbose += flags[:end].count("v")
    return wants_json, verbose


def _prepare_streams() -> None:
    """Makes stdout and stderr writable whatever the locale and however we were started."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # started with the descriptor closed
            setattr(sys, name, open(os.devnull, "w"))
        elif hasattr(stream, "reconfigure"):
            # a process name or a pod may hold what the locale cannot
            stream.reconfigure(errors="backslashreplace")
