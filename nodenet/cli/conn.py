"""nodenet conn: the connections of enrolled pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import click

from nodenet.cli import complete
from nodenet.cli.commands import object_group
from nodenet.cli.conn_batches import emit_batches
from nodenet.cli.conn_filters import FilterOptions, filter_of, filter_options
from nodenet.cli.globals import Format, Globals, list_options, pass_globals, report_options
from nodenet.cli.output import emit_report
from nodenet.cli.params import SECONDS, CountType, OneOf
from nodenet.errors import UsageError

if TYPE_CHECKING:
    from nodenet.conns.connection import Connection
    from nodenet.paths import Instance


#: Behind the options of every verb that filters.
_FILTERS = (
    "A filter given twice keeps what fits either, different filters keep what fits all, ! in front "
    "of a value means not: --state established --state syn-sent --port '!443'"
)


@object_group("conn", epilog="Example: nodenet conn list --pod shop/cart --sort -bytes_received")
def command() -> None:
    """Connections of enrolled pods and their statistics, from the kernel itself."""


@command.command("list", epilog=_FILTERS)
@click.option("--all", "everything", is_flag=True, help="Every TCP socket of the node.")
@click.option("--proxy", is_flag=True, help="Also the proxy's own sockets.")
@click.option("--closed", is_flag=True, help="Those that closed lately instead of open ones.")
@click.option("--raw", is_flag=True, help="Peers by address, not by name.")
@filter_options
@list_options
@pass_globals
def list_(
    g: Globals,
    everything: bool,
    proxy: bool,
    closed: bool,
    raw: bool,
    **filters: Unpack[FilterOptions],
) -> None:
    """Open connections as a table, by pod, then by start."""
    from nodenet.cli.conn_table import columns
    from nodenet.conns.connection import Connection
    from nodenet.conns.query import closed_connections, open_connections
    from nodenet.conns.reader import ConnReader

    if closed and everything:
        raise UsageError("--all and --closed: the kernel keeps closed connections of pods only")
    reader = ConnReader(g.instance)
    wanted = filter_of(filters)

    def batches() -> Iterator[list[Connection]]:
        if closed:
            return closed_connections(reader, wanted, proxy=proxy)
        return open_connections(reader, wanted, everything=everything, proxy=proxy)

    filtered = wanted != type(wanted)()
    emit_batches(
        g,
        batches,
        columns(closed=closed, raw=raw),
        row_type=Connection,
        empty=_why_empty(reader, filtered=filtered),
    )
    if g.format in (Format.TABLE, Format.WIDE) and (missed := reader.counters().over_limit):
        g.notice(f"{missed} connections were not recorded: there were too many at a time")


def _why_empty(reader: object, *, filtered: bool) -> str:
    from nodenet.conns.reader import ConnReader

    assert isinstance(reader, ConnReader)
    if not reader.names.records:
        return "no pod is enrolled; every socket of the node: nodenet conn list --all"
    return "no connection fits" if filtered else "no connections of enrolled pods"


def _ids(instance: Instance) -> list[str]:
    from nodenet.conns.reader import ConnReader

    return [c.id for c in ConnReader(instance).live()]


@command.command("show")
@click.argument("id_", metavar="ID", required=False, shell_complete=complete.completer(_ids))
@report_options
@pass_globals
def show(g: Globals, id_: str | None) -> None:
    """One connection in full, also one that closed lately."""
    from nodenet.cli.conn_show import detail, parse_id, render, with_proxy
    from nodenet.conns.reader import ConnReader

    if id_ is None:
        raise UsageError("conn show needs an ID", hint="list them: nodenet conn list")
    reader, cookie = ConnReader(g.instance), parse_id(id_)
    emit_report(g, lambda: with_proxy(g, detail(reader, cookie)), render)


@command.command("top", epilog=_FILTERS)
@click.option(
    "-w",
    "--watch",
    "interval",
    type=SECONDS,
    default=1.0,
    metavar="SECONDS",
    help="Seconds between two rounds (1).",
)
@click.option(
    "-n",
    "rounds",
    type=CountType(1),
    metavar="N",
    help="So many rounds as plain text; 1 when stdout is no terminal.",
)
@click.option(
    "--by",
    type=OneOf("group", ("pod", "peer", "conn")),
    default="peer",
    help="One row per pod, per pod and peer, or per connection.",
)
@click.option("--sort", "sort", metavar="KEY", help="JSON key, -KEY descending; default bytes/s.")
@click.option("--limit", type=CountType(1), metavar="N", help="At most N rows a round.")
@click.option("--exact", is_flag=True, help="Integers instead of 12.4K.")
@click.option("--proxy", is_flag=True, help="Also the proxy's own sockets.")
@filter_options
@pass_globals
def top(
    g: Globals,
    interval: float,
    rounds: int | None,
    by: str,
    sort: str | None,
    limit: int | None,
    exact: bool,
    proxy: bool,
    **filters: Unpack[FilterOptions],
) -> None:
    """The busiest connections, live: bytes and connections per second."""
    from nodenet.cli.conn_top import Top

    g.exact = exact
    Top(g, filter_of(filters), by=by, interval=interval, sort=sort, limit=limit, proxy=proxy).run(
        rounds
    )


@command.command("watch", epilog=_FILTERS)
@click.option(
    "--events",
    type=OneOf("event", ("open", "established", "refused", "closed"), many=True),
    metavar="KIND,...",
    help="Only these: open established refused closed.",
)
@click.option("--until-count", type=CountType(1), metavar="N", help="End after N events.")
@click.option("--timeout", type=SECONDS, metavar="30s", help="End after this time.")
@click.option("--proxy", is_flag=True, help="Also the proxy's own sockets.")
@click.option("--raw", is_flag=True, help="Peers by address, not by name.")
@filter_options
@pass_globals
def watch(
    g: Globals,
    events: tuple[str, ...] | None,
    until_count: int | None,
    timeout: float | None,
    proxy: bool,
    raw: bool,
    **filters: Unpack[FilterOptions],
) -> None:
    """Connections as they open, are refused and close: one event a line."""
    from nodenet.cli.conn_watch import watch_events

    watch_events(
        g,
        filter_of(filters),
        events=events,
        until_count=until_count,
        timeout=timeout,
        proxy=proxy,
        raw=raw,
    )


@command.command("summary", epilog=_FILTERS)
@click.option(
    "--by",
    type=OneOf("group", ("pod", "peer", "edge", "process", "reason")),
    default="pod",
    help="What a row is.",
)
@click.option(
    "--security",
    type=OneOf("security", ("plain", "mtls")),
    help="Only connections that are secured so, as ztunnel tells.",
)
@filter_options
@report_options
@pass_globals
def summary(g: Globals, by: str, security: str | None, **filters: Unpack[FilterOptions]) -> None:
    """How many connections, how many bytes, how much of them in plaintext."""
    from nodenet.cli.conn_summary import render, summary_of
    from nodenet.conns.reader import ConnReader

    if g.format is Format.NAME:
        raise UsageError("-o name: this command prints a report, which has no names")
    reader, wanted = ConnReader(g.instance), filter_of(filters)
    emit_report(g, lambda: summary_of(g, reader, wanted, by, security), render)
