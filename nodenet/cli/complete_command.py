"""``nodenet _complete SHELL LINE``: the question a completion script asks, hidden from users.

The line is everything left of the cursor, so that each shell's own idea of words (bash breaks
them at colons) does not matter. The answer is one candidate a line, ``value TAB help``.
"""

from __future__ import annotations

import click

from nodenet.cli.commands import object_command
from nodenet.cli.globals import Globals, pass_globals

SHELLS = ("bash", "zsh", "fish")
#: Answers that let the shell complete paths by itself.
FILES, DIRECTORIES = ":files", ":directories"


def candidates(line: str) -> tuple[list[tuple[str, str]], str]:
    """(value, help) of each candidate for the last word of ``line``, and that word."""
    from click.shell_completion import ShellComplete, split_arg_string

    from nodenet.cli.root import root

    words = split_arg_string(line)[1:]
    # after a blank the next word is begun, and it is empty
    incomplete = "" if not words or line[-1:].isspace() else words.pop()
    engine = ShellComplete(root, {"obj": Globals()}, "nodenet", "_NODENET_COMPLETE")
    found: list[tuple[str, str]] = []
    for item in engine.get_completions(words, incomplete):
        match item.type:
            case "file":
                found.append((FILES, ""))
            case "dir":
                found.append((DIRECTORIES, ""))
            case _:
                found.append((item.value, (item.help or "").replace("\n", " ")))
    return found, incomplete


def for_bash(found: list[tuple[str, str]], incomplete: str) -> list[str]:
    """Bash replaces only what follows the last colon: the part before it is left out."""
    done = incomplete.rfind(":") + 1
    return [value if value in (FILES, DIRECTORIES) else value[done:] for value, _ in found]


@object_command("_complete", hidden=True, add_help_option=False)
@click.argument("shell", type=click.Choice(SHELLS))
@click.argument("line")
@pass_globals
def command(_g: Globals, shell: str, line: str) -> None:
    """What could follow LINE."""
    found, incomplete = candidates(line)
    lines = (
        for_bash(found, incomplete)
        if shell == "bash"
        else [f"{value}\t{help}" if help else value for value, help in found]
    )
    for text in lines:
        click.echo(text)
