"""nodenet prog: nodenet's programs in the kernel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from nodenet.cli import complete, numbers
from nodenet.cli.commands import object_group
from nodenet.cli.globals import Globals, list_options, pass_globals
from nodenet.cli.output import emit_list
from nodenet.cli.params import SecondsType
from nodenet.cli.tables import Column, Elide
from nodenet.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodenet.kernel.objects import ProgramRow
    from nodenet.paths import Instance


@object_group("prog", aliases={"list": "show"}, epilog="Example: nodenet prog show --stats 2s")
def command() -> None:
    """Nodenet's programs in the kernel: where they are attached, what they cost."""


def columns(instance: Instance, pods: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns; ``pods`` names namespaces by ``netns:INODE``."""

    def attached(row: ProgramRow) -> str | None:
        names = [pods.get(target, target) for target in row.attach]
        if not names:
            return None
        return names[0] if len(names) == 1 else f"{names[0]} +{len(names) - 1}"

    def pinned(row: ProgramRow) -> str | None:
        paths = [*row.link_pinned, *row.pinned]
        return paths[0].removeprefix(f"{instance.pins}/") if paths else None

    return (
        Column("ID", "id"),
        Column("NAME", "name", max=16),
        Column("HOOK", "hook"),
        Column("ATTACHED TO", "attach", max=32, elide=Elide.MIDDLE, value=attached),
        Column("RUNS", "runs", numbers.size, right=True),
        Column("NS/RUN", "ns_per_run", numbers.count, right=True),
        Column("CPU%", "cpu_percent", numbers.percent, right=True),
        Column("JITED", "bytes_jited", numbers.size, right=True),
        Column("PINNED", "link_pinned", value=pinned),
        Column("TYPE", "type", wide=True),
        Column("TAG", "tag", wide=True),
        Column("XLATED", "bytes_xlated", numbers.size, right=True, wide=True),
        Column("MEM", "bytes_memlock", numbers.size, right=True, wide=True),
        Column("MAPS", "map_ids", wide=True),
        Column("LOADED", "loaded_at_time", lambda v, _exact: numbers.local_time(v), wide=True),
    )


@command.command("show")
@click.argument("which", metavar="[ID|NAME]", required=False, shell_complete=complete.progs)
@click.option("--all", "everything", is_flag=True, help="Every program of the kernel.")
@click.option(
    "--stats",
    type=SecondsType(0.1),
    metavar="2s",
    help="Time the programs for this long: RUNS, NS/RUN, CPU%.",
)
@list_options
@pass_globals
def show(g: Globals, which: str | None, everything: bool, stats: float | None) -> None:
    """Programs: hook, where attached, size; with --stats what they cost."""
    from nodenet.capture.records import read_records
    from nodenet.kernel.objects import ProgramRow

    instance = g.instance
    pods = {f"netns:{r.netns_inode}": r.name for r in read_records(instance)}

    def rows() -> list[ProgramRow]:
        from nodenet.kernel.objects import measured
        from nodenet.kernel.programs import enable_run_stats

        if stats is None:
            return chosen(programs(instance, everything=everything), which)
        with enable_run_stats():
            began = time.monotonic()
            before = programs(instance, everything=everything)
            time.sleep(stats)
            later = programs(instance, everything=everything)
            seconds = time.monotonic() - began
        return chosen(measured(before, later, seconds), which)

    emit_list(
        g,
        rows,
        columns(instance, pods),
        row_type=ProgramRow,
        empty=f"no programs: nothing is pinned below {instance.pins}",
    )


def programs(instance: Instance, *, everything: bool) -> list[ProgramRow]:
    """The rows, cgroups by path."""
    from nodenet.kernel.objects import (
        all_programs,
        cgroup_directory,
        instance_programs,
        read_schema,
    )

    find = all_programs if everything else instance_programs
    return find(instance, read_schema(instance), cgroup_directory)


def chosen(rows: list[ProgramRow], which: str | None) -> list[ProgramRow]:
    """Those with that id or name. NotFound naming the names there are."""
    if which is None:
        return rows
    found = [row for row in rows if which in (row.name, row.name.removeprefix("nn_"), str(row.id))]
    if not found:
        names = " ".join(dict.fromkeys(row.name for row in rows))
        raise NotFound(f"no program {which}", hint=f"there are: {names}" if names else None)
    return found
