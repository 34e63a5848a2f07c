"""nodenet map: nodenet's maps in the kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from nodenet.cli import complete, numbers
from nodenet.cli.commands import object_group
from nodenet.cli.globals import Format, Globals, list_options, pass_globals
from nodenet.cli.output import emit_list, emit_report
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, text
from nodenet.errors import NotFound, UsageError

if TYPE_CHECKING:
    from nodenet.abi import Layout, MapDef
    from nodenet.kernel.mapdump import Entry
    from nodenet.kernel.objects import MapRow
    from nodenet.paths import Instance

#: Rows of a dump that a terminal gets without --limit.
_TERMINAL_LIMIT = 1000


@object_group("map", aliases={"list": "show"}, epilog="Example: nodenet map dump pods")
def command() -> None:
    """Nodenet's maps in the kernel and what is in them."""


COLUMNS = (
    Column("ID", "id"),
    Column("NAME", "name", max=16),
    Column("TYPE", "type", max=16),
    Column("KEY", "bytes_key", right=True),
    Column("VALUE", "bytes_value", right=True),
    Column("ENTRIES", "entries", numbers.count, right=True),
    Column("MAX", "max_entries", numbers.count, right=True),
    Column("FILL%", "fill", numbers.percent, right=True),
    Column("MEM", "bytes_memlock", numbers.size, right=True),
    Column("EVICTED", "evicted", numbers.count, right=True),
    Column("FLAGS", "flags", wide=True),
    Column("SCHEMA", "schema", wide=True),
    Column("PINNED", "pinned", wide=True),
)


@command.command("show")
@click.argument("which", metavar="[ID|NAME]", required=False, shell_complete=complete.maps)
@click.option("--all", "everything", is_flag=True, help="Every map of the kernel.")
@list_options
@pass_globals
def show(g: Globals, which: str | None, everything: bool) -> None:
    """Maps: type, sizes, how full."""
    from nodenet.kernel.objects import MapRow

    instance = g.instance
    emit_list(
        g,
        lambda: _chosen(maps(instance, everything=everything), which),
        COLUMNS,
        row_type=MapRow,
        empty=f"no maps: nothing is pinned below {instance.maps}",
    )


def maps(instance: Instance, *, everything: bool) -> list[MapRow]:
    """The rows; what the map types themselves cannot say is counted by the reader."""
    from nodenet.kernel.objects import all_maps, instance_maps, read_schema

    find = all_maps if everything else instance_maps
    counts = _counts(instance)
    return [
        _counted(row, counts[row.name]) if row.pinned and row.name in counts else row
        for row in find(instance, read_schema(instance))
    ]


def _counts(instance: Instance) -> dict[str, tuple[int, int | None]]:
    """Entries and evicted ones of socket storage, which has no count, and of the closed ring."""
    from nodenet.conns.decode import RECORD_SIZE
    from nodenet.conns.reader import ConnReader

    reader = ConnReader(instance)
    try:
        counters = reader.counters()
        live = len(reader.live_records()) // RECORD_SIZE
    except NotFound:  # not loaded, or not to the end
        return {}
    return {"conns": (live, None), "closed": (counters.closed_kept, counters.evicted)}


def _counted(row: MapRow, counts: tuple[int, int | None]) -> MapRow:
    import msgspec

    entries, evicted = counts
    fill = round(100 * entries / row.max_entries, 2) if row.max_entries else None
    return msgspec.structs.replace(row, entries=entries, fill=fill, evicted=evicted)


def _chosen(rows: list[MapRow], which: str | None) -> list[MapRow]:
    if which is None:
        return rows
    found = [row for row in rows if which in (row.name, str(row.id))]
    if not found:
        names = " ".join(dict.fromkeys(row.name for row in rows))
        raise NotFound(f"no map {which}", hint=f"there are: {names}" if names else None)
    return found


@command.command("dump")
@click.argument("name", shell_complete=complete.maps)
@click.option("--count", "only_count", is_flag=True, help="How many entries there are.")
@click.option(
    "--key",
    "conditions",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only entries whose key has this value; repeat for AND.",
)
@click.option("--hex", "as_hex", is_flag=True, help="Bytes as they are.")
@list_options
@pass_globals
def dump(
    g: Globals, name: str, only_count: bool, conditions: tuple[str, ...], as_hex: bool
) -> None:
    """The entries of a map, decoded."""
    from nodenet import abi
    from nodenet.kernel import mapdump
    from nodenet.kernel.objects import read_schema

    instance = g.instance
    with mapdump.open_map(instance, name) as table:
        definition = abi.MAPS[name]
        if not as_hex:
            mapdump.check_layout(table, definition, read_schema(instance))
        elif conditions:
            raise UsageError("--hex and --key: bytes have no fields; leave one out")
        fits = mapdump.matcher(definition, _parsed(conditions))
        if only_count:
            emit_report(g, lambda: _count(table, definition, conditions, fits), _render_count)
            return
        if g.limit is None and g.format in (Format.TABLE, Format.WIDE) and sys.stdout.isatty():
            g.limit = _TERMINAL_LIMIT

        def rows() -> list[Entry]:
            if as_hex:
                return mapdump.hex_entries(table)
            return [e for e in mapdump.entries(table, definition) if fits(e)]

        columns = _hex_columns() if as_hex else _columns(definition, per_cpu=table.per_cpu)
        emit_list(g, rows, columns, name="key", empty=f"map {name} is empty")


def _count(
    table: Any, definition: MapDef, conditions: Sequence[str], fits: Callable[[Entry], bool]
) -> dict[str, int]:
    from nodenet.kernel import mapdump

    if not conditions:
        return {"entries": table.count(), "max_entries": table.max_entries}
    found = sum(1 for entry in mapdump.entries(table, definition) if fits(entry))
    return {"entries": found, "max_entries": table.max_entries}


def _render_count(report: dict[str, int], _style: Style) -> str:
    return f"{report['entries']}\n"


def _parsed(conditions: Sequence[str]) -> dict[str, str]:
    found = {}
    for condition in conditions:
        field, equals, value = condition.partition("=")
        if not equals or not field:
            raise UsageError(f"--key {condition}: not FIELD=VALUE; write e.g. --key ip=10.42.1.7")
        found[field] = value
    return found


def _columns(definition: MapDef, *, per_cpu: bool) -> list[Column]:
    """A column a member; per-CPU numbers are summed, the parts are in the JSON."""
    assert definition.key is not None and definition.value is not None
    key_names = [f.name for f in definition.key.fields if f.role != "pad"]
    if definition.name in ("stat", "watch"):
        key_names.append("name")
    columns = [
        Column(f"KEY {name}" if not i else name, "key", _shown, value=_member("key", name))
        for i, name in enumerate(key_names)
    ]
    title = "SUM" if per_cpu else "VALUE"
    for i, name in enumerate(_visible(definition.value)):
        value = _summed(name) if per_cpu else _member("value", name)
        columns.append(Column(f"{title} {name}" if not i else name, "value", _shown, value=value))
    return columns


def _hex_columns() -> list[Column]:
    def joined(key: str) -> Callable[[Entry], str]:
        def value(entry: Entry) -> str:
            parts = [entry[key]] if key in entry else [v["value"] for v in entry["values"]]
            return " | ".join(" ".join(b[2:] for b in part) for part in parts)

        return value

    return [
        Column("KEY", "key", value=joined("key")),
        Column("VALUE", "value", value=joined("value")),
    ]


def _visible(layout: Layout) -> list[str]:
    return [f.name for f in layout.fields if f.role != "pad"]


def _member(part: str, name: str) -> Callable[[Entry], Any]:
    return lambda entry: entry[part][name]


def _summed(name: str) -> Callable[[Entry], Any]:
    return lambda entry: sum(v["value"][name] for v in entry["values"])


def _shown(value: Any, _exact: bool) -> str:
    return text(value)
