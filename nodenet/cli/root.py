"""The top of the command tree: the objects by name, each imported when it is named.

`OBJECTS` is the static table behind ``nodenet --help`` and the first completion, so that neither
imports an object's module.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

import click

from nodenet.cli import prefix
from nodenet.cli.commands import ObjectGroup
from nodenet.cli.globals import GLOBAL_OPTIONS
from nodenet.errors import NodenetError, NotThereYet


class Object(NamedTuple):  # every command makes this class; a dataclass takes ten times as long
    """One object: its name, its line in the help, whether it has verbs."""

    name: str
    help: str
    verbs: bool = True
    hidden: bool = False

    @property
    def module(self) -> str:
        """Where its ``command`` is."""
        return f"nodenet.cli.{'complete_command' if self.name == '_complete' else self.name}"


#: In the order of the help and of every list of candidates.
OBJECTS: tuple[Object, ...] = (
    Object("doctor", "what this kernel and host can do, found by trying", verbs=False),
    Object("lab", "nodes and pods in namespaces here: up, demo, exec, down"),
    Object("capture", "redirect pods' connections: enroll, show, verify, explain"),
    Object("conn", "connections of enrolled pods and their statistics"),
    Object("prog", "nodenet's programs in the kernel"),
    Object("map", "nodenet's maps in the kernel"),
    Object("ztunnel", "the proxy: run it, ask it"),
    Object("node", "the agent that enrols this node's pods"),
    Object("konnectivity", "reverse tunnels: server, agent, show, curl"),
    Object("completion", "completion script for bash, zsh or fish", verbs=False),
    Object("version", "versions of nodenet, its parts and this kernel", verbs=False),
    Object("_complete", "what a completion script asks", verbs=False, hidden=True),
)

#: Commands that will come, and what does their work today; an object alone, or with its verb.
PLANNED: Mapping[str, str] = {
    "cni": "enrol pods by command: nodenet capture enroll",
    "discovery": "give the proxy a mesh file: nodenet ztunnel run --mesh FILE",
    "ca run": "use the embedded CA: nodenet ztunnel run --embedded-ca DIRECTORY",
    "node pods": "list the enrolled ones: nodenet capture show",
}

_BY_NAME = {o.name: o for o in OBJECTS}
_VISIBLE = [o.name for o in OBJECTS if not o.hidden]
#: `co` is conn and `c` lists objects with verbs only: these are typed rarely and in full.
_YIELDING = [o.name for o in OBJECTS if not o.verbs]


class Root(ObjectGroup):
    """``nodenet``: finds objects as an `ObjectGroup` finds verbs, and loads them late."""

    missing = "an object"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The objects, without importing any."""
        return _VISIBLE

    def visible(self) -> list[str]:
        """As `list_commands`."""
        return _VISIBLE

    def find(self, token: str) -> str:
        """The object that ``token`` means."""
        if token in _BY_NAME:
            return token
        return prefix.match(token, _VISIBLE, what="object", yielding=_YIELDING)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As every group; a command that is planned is told apart from one that nobody knows."""
        words = [word for word in args if not word.startswith("-")]
        for command in (" ".join(words[:1]), " ".join(words[:2])):
            if command in PLANNED and not ctx.resilient_parsing:
                raise NotThereYet(command, PLANNED[command])
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the object's module."""
        found = _BY_NAME.get(cmd_name)
        if found is None:
            return None
        try:
            module = import_module(found.module)
        except ModuleNotFoundError as error:
            if error.name != found.module:
                raise
            raise NodenetError(
                f"no {found.name} in this installation: {found.module}", hint="reinstall nodenet"
            ) from error
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``nodenet`` alone is a first look: it gets the help."""
        return super().parse_args(ctx, args or ["--help"])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The grammar in one line."""
        formatter.write_usage("nodenet", "[GLOBAL] OBJECT VERB [ARGS] [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The objects and the global options, from static tables."""
        with formatter.section("Objects"):
            formatter.write_dl([(o.name, o.help) for o in OBJECTS if not o.hidden])
        own = [p for p in click.Command.get_params(self, ctx) if not isinstance(p, click.Argument)]
        records = [p.get_help_record(ctx) for p in (*GLOBAL_OPTIONS, *own)]
        with formatter.section("Global options, before the object or after the verb"):
            formatter.write_dl([r for r in records if r])

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Names of objects, without importing them; options as click finds them."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(o.name, help=o.help)
            for o in OBJECTS
            if not o.hidden and o.name.startswith(incomplete)
        ]


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from nodenet import __version__

        click.echo(f"nodenet {__version__}")
        ctx.exit(0)


@click.group(
    "nodenet",
    cls=Root,
    epilog="Exit status: 0 done, 1 failed, 2 usage, 3 not possible here, 4 nothing there. "
    "Names may be shortened: nodenet conn l. Will it work here? sudo nodenet doctor",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version.",
)
def root() -> None:
    """Redirect pods' connections in the kernel, carry them by ztunnel, count every one."""
