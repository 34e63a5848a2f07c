"""`conn top`: the busiest connections per second, on a screen, as text or as JSON Lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from nodenet.cli import numbers
from nodenet.cli.globals import Format, Globals
from nodenet.cli.output import Stream
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, Elide, render_table
from nodenet.errors import UsageError

if TYPE_CHECKING:
    from nodenet.cli.conn_screen import Screen
    from nodenet.conns.filters import Filter
    from nodenet.conns.rates import Group, Look, RateRow

COLUMNS = (
    Column("POD", "pod", max=32, elide=Elide.MIDDLE),
    Column("PEER", "peer", max=47),
    Column("DIR", "dir"),
    Column("CONNS", "connections", numbers.count, right=True),
    Column("NEW/s", "opened_per_s", lambda v, exact: numbers.percent(v, exact), right=True),
    Column("OUT/s", "rate_bytes_sent_per_s", numbers.size, right=True),
    Column("IN/s", "rate_bytes_received_per_s", numbers.size, right=True),
    Column("RTT", "rtt_us", numbers.microseconds, right=True),
    Column("RETR/s", "retransmits_per_s", lambda v, exact: numbers.percent(v, exact), right=True),
)
#: What the key s goes through; the empty one is bytes per second both ways.
SORTS = ("", *(f"-{column.key}" for column in COLUMNS[3:]))
_GROUPS = ("peer", "conn", "pod")
_ID_COLUMN = Column("ID", "id", max=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The line above the rows."""

    live: int
    events_lost: int
    evicted: int
    over_limit: int


@dataclass(slots=True, kw_only=True)
class View:
    """What the keys change."""

    by: str
    sort: str = ""
    pattern: str = ""
    paused: bool = False
    typing: bool = False

    def press(self, key: str) -> bool:
        """Takes one key; False for the one that ends the screen."""
        if self.typing:
            self._type(key)
            return True
        match key:
            case "q" | "\x03" | "\x04":
                return False
            case "s":
                known = self.sort in SORTS
                self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)] if known else ""
            case "g":
                self.by = _GROUPS[(_GROUPS.index(self.by) + 1) % len(_GROUPS)]
            case "p" | " ":
                self.paused = not self.paused
            case "/":
                self.typing, self.pattern = True, ""
            case "\x1b":
                self.pattern = ""
        return True

    def _type(self, key: str) -> None:
        if key in ("\r", "\n"):
            self.typing = False
        elif key == "\x1b":
            self.typing, self.pattern = False, ""
        elif key in ("\x7f", "\b"):
            self.pattern = self.pattern[:-1]
        elif key.isprintable():
            self.pattern += key


class Top:
    """One run of the command."""

    def __init__(
        self,
        g: Globals,
        wanted: Filter,
        *,
        by: str,
        interval: float,
        sort: str | None,
        limit: int | None,
        proxy: bool,
    ) -> None:
        from nodenet.conns.filters import compile_filter
        from nodenet.conns.rates import RateRow
        from nodenet.conns.reader import ConnReader

        if interval <= 0:
            raise UsageError("--watch 0: needs time between two rounds", hint="write 0.5s")
        known = RateRow.__struct_fields__
        if sort is not None and sort.removeprefix("-") not in known:
            raise UsageError(f"unknown key {sort} in --sort", hint=f"one of: {' '.join(known)}")
        self._g = g
        self._interval = interval
        self._limit = limit
        self._proxy = proxy
        self._view = View(by=by, sort=sort or "")
        self._reader = ConnReader(g.instance)
        self._compiled = compile_filter(wanted, self._reader.names, time.time_ns())

    def run(self, rounds: int | None) -> None:
        """Until q, Ctrl-C or ``rounds``; one round when nobody watches a terminal."""
        as_table = self._g.format in (Format.TABLE, Format.WIDE)
        if rounds is None and as_table and self._g.style.redraw and sys.stdin.isatty():
            from nodenet.cli.conn_screen import Screen

            with Screen() as screen:
                self._watch(screen)
            return
        if rounds is None and not sys.stdout.isatty():
            rounds = 1
        with Stream(self._g, lambda text, _style: str(text)) as stream:
            for number, rows in enumerate(self._rounds(), 1):
                if as_table:
                    stream.put([("\n" if number > 1 else "") + self.page(rows, self._g.style)])
                else:
                    stream.put(rows)
                if number == rounds:
                    break

    def _rounds(self) -> Iterator[list[RateRow]]:
        before = self._look(None)
        while True:
            time.sleep(self._interval)
            now = self._look(before)
            yield self._rows(before, now)
            before = now

    def _look(self, before: Look | None) -> Look:
        from nodenet.conns.rates import look

        reader, compiled = self._reader, self._compiled
        # the live ones first: what closes in between is then found among the closed
        live = reader.live(proxy=self._proxy, netns=compiled.netns)
        closed = (
            reader.closed(proxy=self._proxy, netns=compiled.netns, since_boot_ns=before.boot_ns)
            if before
            else []
        )
        return look(compiled.keep(live), compiled.keep(closed))

    def _rows(self, before: Look, now: Look) -> list[RateRow]:
        from nodenet.conns.rates import rates

        by, time_of = cast("Group", self._view.by), self._reader.decoder.time
        return shown_rows(rates(before, now, by, time_of=time_of), self._view, self._limit)

    def page(self, rows: list[RateRow], style: Style, height: int | None = None) -> str:
        """Head and table, at most ``height`` lines."""
        return page(rows, self._totals(), self._view, style, height)

    def _totals(self) -> Totals:
        counters = self._reader.counters()
        return Totals(
            live=counters.live,
            events_lost=counters.events_lost,
            evicted=counters.evicted,
            over_limit=counters.over_limit,
        )

    def _watch(self, screen: Screen) -> None:
        before = now = self._look(None)
        due = time.monotonic() + self._interval
        while True:
            rows = self._rows(before, now) if now is not before else []
            screen.show(self.page(rows, self._g.style, screen.height))
            for key in screen.keys(max(due - time.monotonic(), 0)):
                if not self._view.press(key):
                    return
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval
                if not self._view.paused:
                    before, now = now, self._look(now)


def shown_rows(rows: list[RateRow], view: View, limit: int | None = None) -> list[RateRow]:
    """Filtered by the pattern, sorted by the view's key, at most ``limit``."""
    if view.pattern:
        rows = [
            row
            for row in rows
            if view.pattern in (row.pod or "") or view.pattern in (row.peer or "")
        ]
    if view.sort:
        key, backwards = view.sort.removeprefix("-"), view.sort.startswith("-")
        present = [row for row in rows if getattr(row, key) is not None]
        absent = [row for row in rows if getattr(row, key) is None]
        present.sort(key=lambda row: getattr(row, key), reverse=backwards)
        rows = present + absent
    return rows if limit is None else rows[:limit]


def page(
    rows: list[RateRow], totals: Totals, view: View, style: Style, height: int | None = None
) -> str:
    """The text of one round."""
    columns = [c for c in COLUMNS if not (c.key == "peer" and view.by == "pod")]
    if view.by == "conn":
        columns.insert(0, _ID_COLUMN)
    head = (
        f"{totals.live} connections  "
        f"out {numbers.rate(sum(r.rate_bytes_sent_per_s for r in rows), style.exact)}  "
        f"in {numbers.rate(sum(r.rate_bytes_received_per_s for r in rows), style.exact)}  "
        f"new {numbers.percent(sum(r.opened_per_s for r in rows))}/s  "
        f"events lost {totals.events_lost}  evicted {totals.evicted}"
    )
    if totals.over_limit:
        head += f"  not recorded {totals.over_limit}"
    lines = [head]
    if height is not None:
        state = f"by {view.by}, sorted by {view.sort.removeprefix('-') or 'bytes'}"
        if view.paused:
            state += ", paused"
        if view.typing or view.pattern:
            state += f", /{view.pattern}{'_' if view.typing else ''}"
        lines += [f"{state}   s sort  / filter  p pause  g group  q quit", ""]
        rows = rows[: max(height - len(lines) - 2, 0)]
    table = render_table(rows, columns, replace(style, wide=False))
    return "\n".join(lines) + "\n" + table
