"""How a command answers: a list, a report or a stream, in the form the user asked for.

The JSON is the source; text is rendered from the same objects. One JSON document a run, flushed;
with --watch and in streams JSON Lines, one object a change.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from nodenet.cli.globals import Format, Globals
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, Row, field, render_table
from nodenet.errors import NodenetError, NotFound, UsageError

#: A report: a msgspec struct or a dictionary, usually with ``ok`` first.
Report = Any
_CLEAR = "\x1b[H\x1b[2J"


def emit_list(
    g: Globals,
    rows: Sequence[Row] | Callable[[], Sequence[Row]],
    columns: Sequence[Column],
    *,
    row_type: type[msgspec.Struct] | None = None,
    name: str | None = None,
    identity: Sequence[str] = (),
    empty: str | None = None,
    render: Callable[[list[Row], Style], str] | None = None,
    moving: Collection[str] = (),
) -> None:
    """Prints a list: an array of objects, or a table.

    ``rows`` is a function where the verb takes --watch; it is called once a round. ``row_type``
    lets --sort check its key even when there are no rows. ``name`` is the JSON key that -o name
    prints (default: the first column's); by it --watch knows a row again, or by all keys of
    ``identity`` where others may have that name. ``empty`` is the notice for a human when there is
    nothing. ``render`` makes the text where a table is not enough.
    ``moving`` are keys that are new in each round, such as ages: alone they are no change to
    --watch with JSON. Applies --sort, --limit and --fail-empty.
    """
    name = name or columns[0].key

    def produce() -> list[Row]:
        found = list(rows() if callable(rows) else rows)
        return chosen(g, found, row_type=row_type, empty=empty)

    def show(found: list[Row], style: Style) -> str:
        if not found and empty and g.limit != 0:
            g.notice(empty)
        return render(found, style) if render else render_table(found, columns, style)

    if g.watch is not None:
        _watch(g, produce, show, identity or (name,), moving)
        return
    found = produce()
    if g.format is Format.NAME:
        _write("".join(f"{field(row, name)}\n" for row in found))
    elif not _emit_data(g, found):
        _write(show(found, g.style))


def chosen(
    g: Globals,
    rows: list[Row],
    *,
    row_type: type[msgspec.Struct] | None = None,
    empty: str | None = None,
) -> list[Row]:
    """The rows that --sort and --limit leave, for reports that hold a list; see `emit_list`.

    UsageError for an unknown key, NotFound for no rows with --fail-empty.
    """
    if not rows and g.fail_empty:
        raise NotFound(f"nothing found{f': {empty}' if empty else ''}")
    return _limited(g, _sorted(g, rows, row_type))


def emit_report(
    g: Globals,
    report: Report | Callable[[], Report],
    render: Callable[[Any, Style], str],
    *,
    moving: Collection[str] = (),
) -> Any:
    """Prints one object, or what ``render`` makes of it, and returns it.

    ``report`` is a function where the verb takes --watch; ``moving`` as in `emit_list`, at any
    depth. -o name is refused: a report has none.
    """
    produce = report if callable(report) else lambda: report
    if g.format is Format.NAME:
        raise UsageError("-o name: this command prints a report, which has no names")
    if g.watch is not None:
        return _watch(g, produce, render, (), moving)
    found = produce()
    if not _emit_data(g, found):
        _write(_ended(render(found, g.style)))
    return found


class Stream:
    """Lines as things happen: JSON Lines or text, flushed a batch.

    A context manager around the loop that waits; Ctrl-C ends it well (exit 0)::

        with Stream(g, event_line) as stream:
            for batch in events():
                stream.put(batch)
    """

    def __init__(self, g: Globals, render: Callable[[Any, Style], str]) -> None:
        self._g = g
        self._render = render
        self._format = g.format
        self._style = g.style
        if self._format is Format.NAME:
            raise UsageError("-o name: this command prints events, which have no names")

    def __enter__(self) -> Stream:
        self._g.streaming = True
        return self

    def put(self, batch: Iterable[Any]) -> None:
        """Writes each object of the batch as one line, then flushes once."""
        if self._format is Format.JSON:
            lines = b"".join(_json(self._g, item) for item in batch)
            _write_bytes(lines)
        elif self._format is Format.YAML:
            _write("".join("---\n" + _yaml(item) for item in batch))
        else:
            _write("".join(_ended(self._render(item, self._style)) for item in batch))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return kind is KeyboardInterrupt


def _emit_data(g: Globals, data: Any) -> bool:
    """Writes ``data`` as JSON or YAML; False when text is wanted."""
    if g.format is Format.JSON:
        _write_bytes(_json(g, data))
    elif g.format is Format.YAML:
        _write(_yaml(data))
    else:
        return False
    g.documents += 1
    return True


def _json(g: Globals, data: Any) -> bytes:
    raw = msgspec.json.encode(data)
    # JSON Lines stay one line each even with -p
    if g.pretty and not g.streaming:
        raw = msgspec.json.format(raw, indent=2)
    return raw + b"\n"


def _yaml(data: Any) -> str:
    try:
        import yaml
    except ImportError as error:
        raise NodenetError("no YAML here: Python module yaml", hint="pip install pyyaml") from error

    def quoted(dumper: Any, word: str) -> Any:
        # a YAML 1.2 reader would take the id 12e4 for a number
        style = "'" if word[:1] in "+-.0123456789" else ""
        return dumper.represent_scalar("tag:yaml.org,2002:str", word, style=style)

    # libyaml's is five times faster, and not everywhere
    base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    Dumper: Any = type("Dumper", (base,), {})
    Dumper.add_representer(str, quoted)
    text = yaml.dump(
        msgspec.to_builtins(data), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=4096
    )
    return str(text)


def _watch(
    g: Globals,
    produce: Callable[[], Any],
    render: Callable[[Any, Style], str],
    identity: Sequence[str],
    moving: Collection[str],
) -> Any:
    """Asks again every ``g.watch`` seconds until Ctrl-C; returns the last answer."""
    assert g.watch is not None
    if g.format is Format.NAME:
        raise UsageError("-o name and --watch do not go together; use -j --watch")
    as_data = g.format in (Format.JSON, Format.YAML)
    changes = _Changes(identity, moving)
    found = None
    with Stream(g, lambda item, _style: str(item)) as stream:
        first = True
        while True:
            found = produce()
            if as_data:
                stream.put(changes.since_last(found))
            else:
                style = g.style
                separator = "" if first else "\n"
                _write((_CLEAR if style.redraw else separator) + _ended(render(found, style)))
            first = False
            time.sleep(g.watch)
    return found


class _Changes:
    """Which objects are new, different or gone since the last round, as JSON objects."""

    def __init__(self, identity: Sequence[str], moving: Collection[str]) -> None:
        self._identity = identity
        self._moving = frozenset(moving)
        self._last: dict[Any, Any] = {}

    def since_last(self, found: Any) -> list[dict[str, Any]]:
        """One object a change: ``change`` (added, changed, gone), then the object's keys."""
        now: dict[Any, Any] = {}
        alike: Counter[Any] = Counter()
        for row in found if self._identity else (found,):
            key = tuple(field(row, each) for each in self._identity)
            # each of those with one name is a row all the same
            now[key, alike[key]] = msgspec.to_builtins(row)
            alike[key] += 1
        changes = [
            {"change": "changed" if key in self._last else "added", **row}
            for key, row in now.items()
            if key not in self._last or self._still(self._last[key]) != self._still(row)
        ]
        changes += [{"change": "gone", **row} for key, row in self._last.items() if key not in now]
        self._last = now
        return changes

    def _still(self, data: Any) -> Any:
        """``data`` without the keys that always move."""
        if not self._moving:
            return data
        if isinstance(data, dict):
            return {k: self._still(v) for k, v in data.items() if k not in self._moving}
        return [self._still(each) for each in data] if isinstance(data, list) else data


def _sorted(g: Globals, rows: list[Row], row_type: type[msgspec.Struct] | None) -> list[Row]:
    """By --sort; absent values come last in both directions, equal ones keep their order."""
    if g.sort is None:
        return rows
    key, backwards = g.sort.removeprefix("-"), g.sort.startswith("-")
    known = _keys(rows, row_type)
    if known is not None and key not in known:
        raise UsageError(f"unknown key {key} in --sort", hint=f"one of: {' '.join(known)}")
    present = [row for row in rows if field(row, key) is not None]
    absent = [row for row in rows if field(row, key) is None]
    try:
        present.sort(key=lambda row: field(row, key), reverse=backwards)
    except TypeError:
        # lists of objects have no order of their own
        present.sort(key=lambda row: str(field(row, key)), reverse=backwards)
    return present + absent


def _keys(rows: Sequence[Row], row_type: type[msgspec.Struct] | None) -> list[str] | None:
    """The JSON keys of a row; None when neither a row nor a type says."""
    if row_type is None and rows and isinstance(rows[0], msgspec.Struct):
        row_type = type(rows[0])
    if row_type is not None:
        return list(row_type.__struct_fields__)
    if rows and isinstance(rows[0], Mapping):
        return list(rows[0])
    return None


def _limited(g: Globals, rows: list[Row]) -> list[Row]:
    if g.limit is None or len(rows) <= g.limit:
        return rows
    g.notice(f"{len(rows) - g.limit} of {len(rows)} left out (--limit {g.limit})")
    return rows[: g.limit]


def _ended(text: str) -> str:
    """``text`` with exactly one newline at its end, unless it is empty."""
    return text.rstrip("\n") + "\n" if text else ""


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_bytes(raw: bytes) -> None:
    """Straight to the descriptor's buffer: no decoding and encoding of megabytes."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # a test's text stream
        _write(raw.decode())
        return
    sys.stdout.flush()
    binary.write(raw)
    binary.flush()
