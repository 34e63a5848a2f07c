"""A small command tree that uses every part of the framework; also a program of its own.

Kept apart from the real objects, so that the framework is tested by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import msgspec

from nodenet.cli import numbers
from nodenet.cli.commands import ObjectGroup, object_group
from nodenet.cli.globals import Globals, list_options, pass_globals, report_options
from nodenet.cli.output import Stream, emit_list, emit_report
from nodenet.cli.params import PORT, OneOf
from nodenet.cli.progress import Steps
from nodenet.cli.tables import Column, Elide
from nodenet.errors import NotFound, NotSupported


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    id: str
    pod: str | None
    remote: str
    state: str
    bytes_sent: int


ITEMS = (
    Item(id="3a01", pod="shop/cart-7d9f6b-with-a-name-that-goes-on", remote="10.42.1.7:51034",
         state="ok", bytes_sent=12_702),
    Item(id="12e4", pod=None, remote="[fd42:1:2:3:4:5:6:7]:40112",
         state="degraded", bytes_sent=3_251_000),
    Item(id="3a45", pod="shop/db", remote="10.42.1.9:8080", state="missing", bytes_sent=0),
)  # fmt: skip
COLUMNS = (
    Column("ID", "id", max=16),
    Column("POD", "pod", max=32, elide=Elide.MIDDLE),
    Column("REMOTE", "remote", keep=True),
    Column("STATE", "state", state=True),
    Column("SENT", "bytes_sent", numbers.size, right=True),
    Column("NOTE", "pod", wide=True, value=lambda row: "wide"),
)


@click.group("nodenet", cls=ObjectGroup)
def tree() -> None:
    """The root."""


@object_group("item", aliases={"ls": "list"})
def item() -> None:
    """Things."""


tree.add_command(item)


@item.command("list")
@list_options
@click.option("--pod")
@click.option("--only", type=OneOf("state", ["ok", "degraded", "missing"]))
@click.option("--port", type=PORT)
@pass_globals
def list_(g: Globals, pod: str | None, only: str | None, port: int | None) -> None:
    """Things as a table."""
    rounds = iter((ITEMS, ITEMS[:2], ITEMS[:2]))

    def rows() -> list[Item]:
        try:
            found = next(rounds)
        except StopIteration:
            raise KeyboardInterrupt from None  # the user's Ctrl-C in a --watch
        return [i for i in found if pod in (None, i.pod) and only in (None, i.state)]

    emit_list(g, rows, COLUMNS, row_type=Item, empty="no items")


@item.command("show")
@report_options
@pass_globals
def show(g: Globals) -> int:
    """A report that says no."""
    emit_report(g, {"ok": False, "count": 3}, lambda r, style: f"count {style.paint('ok')}")
    return 1


@item.command("ages", hidden=True)
@list_options
@click.option("--report", is_flag=True)
@pass_globals
def ages(g: Globals, report: bool) -> None:
    """Things that grow older, and of which one changes at last."""
    rounds = iter(((1, "ok"), (2, "ok"), (3, "bad")))

    def rows() -> list[dict[str, object]]:
        try:
            age, state = next(rounds)
        except StopIteration:
            raise KeyboardInterrupt from None
        return [{"id": "a", "state": state, "age_s": age}, {"id": "b", "age_s": age}]

    if report:
        emit_report(g, lambda: {"ok": True, "rows": rows()}, lambda r, _: "", moving=("age_s",))
    else:
        emit_list(g, rows, (Column("ID", "id"),), moving=("age_s",))


@item.command("events")
@pass_globals
def events(g: Globals) -> None:
    """A stream that the user ends."""

    def batches() -> Iterator[list[dict[str, int]]]:
        yield [{"n": 1}, {"n": 2}]
        yield [{"n": 3}]
        raise KeyboardInterrupt

    with Stream(g, lambda event, style: f"event {event['n']}") as stream:
        for batch in batches():
            stream.put(batch)


@item.command("flood")
@pass_globals
def flood(g: Globals) -> None:
    """A stream that never ends."""
    with Stream(g, lambda event, style: f"event {event['n']}") as stream:
        while True:
            stream.put([{"n": 1}] * 1000)


@item.command("hang")
def hang() -> None:
    """Waits for ever."""
    import signal

    print("waiting", flush=True)
    signal.pause()


@item.command("work")
@pass_globals
def work(g: Globals) -> None:
    """Numbered steps."""
    steps = Steps(g, 2)
    with steps.step("compile"):
        pass
    with steps.step("load"):
        raise NotFound("no map nmae: demo", hint="look again")


@item.command("fail")
@click.argument("how")
@pass_globals
def fail(g: Globals, how: str) -> None:
    """Goes wrong in one of several ways."""
    match how:
        case "unsupported":
            try:
                raise OSError(1, "Operation not permitted")
            except OSError as error:
                raise NotSupported("cgroup/connect4", "Linux 4.17", hint="upgrade") from error
        case "late":
            emit_report(g, {"ok": True}, lambda r, s: "fine")
            raise NotFound("gone: thing")
        case "stream":
            with Stream(g, lambda r, s: "line") as stream:
                stream.put([{"n": 1}])
                raise NotFound("gone: thing")
        case "group":
            raise ExceptionGroup("tasks", [NotFound("gone: in a task\nwith two lines")])
        case "permission":
            open("/proc/1/mem-that-is-not-there/x" if g.quiet else "/dev/null").close()
            raise PermissionError(13, "Permission denied", "/sys/fs/bpf/nodenet")
        case _:
            raise ValueError(f"bad {how}")


if __name__ == "__main__":
    from nodenet.cli import run

    if sys.argv[1:2] == ["--as-main"]:
        # the real entry point with this tree: signals and broken pipes are its business
        from nodenet.cli.main import main

        run.run.__defaults__ = (tree,)
        del sys.argv[1]
        sys.exit(main())
    sys.exit(run.run(sys.argv[1:], tree))
