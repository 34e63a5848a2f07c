"""Tables: rows and columns in, text out.

On a terminal the columns grow to their content, up to each one's maximum, then to the terminal.
When that is too narrow, elidable columns shrink to their floor first, then columns are dropped
from the right. Addresses are never cut. Elsewhere (a pipe, a file) every column is there in full
with two spaces between, so that awk finds its field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from nodenet.cli.style import Style

GAP = "  "
ABSENT = "-"
#: An elided cell keeps at least this many characters.
ELIDE_FLOOR = 16

#: A mapping or a msgspec struct; cells are found by key or attribute.
Row = Any
#: Value of a cell and --exact to its text.
Show = Callable[[Any, bool], str]


class Elide(Enum):
    """Where text that is too long is cut."""

    NEVER = "never"
    """Addresses, numbers, state words."""
    MIDDLE = "middle"
    """Pod names: both ends tell pods apart."""
    END = "end"
    """Prose."""


def text(value: Any, exact: bool = False) -> str:
    """The default way to show a value: lists joined by commas, booleans as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(item) for item in value) or ABSENT
    return str(value)


class Column(NamedTuple):  # not a dataclass, for the same reason as `nodenet.cli.root.Object`
    """One column of a table.

    ``key`` is the JSON key shown, unless ``value`` computes the cell from the row. ``show`` turns
    the value into text (`nodenet.cli.numbers` for the numeric ones); None is always ``-``.
    """

    title: str
    key: str
    show: Show = text
    max: int | None = None
    """Widest it may be on a terminal; None: as wide as its content."""
    right: bool = False
    """Right-aligned: numbers."""
    elide: Elide = Elide.NEVER
    wide: bool = False
    """Only with -o wide."""
    keep: bool = False
    """Never dropped, however narrow the terminal; the first column never is either."""
    state: bool = False
    """Holds a state word: coloured."""
    value: Callable[[Row], Any] | None = None


def field(row: Row, key: str) -> Any:
    """The value of a JSON key in a mapping or a struct."""
    return row[key] if isinstance(row, Mapping) else getattr(row, key)


def cell(row: Row, column: Column, exact: bool = False) -> str:
    """The full text of one cell: one line, control characters written out."""
    value = column.value(row) if column.value else field(row, column.key)
    return ABSENT if value is None else printable(column.show(value, exact))


def printable(shown: str) -> str:
    """``shown`` without control characters: names of processes may hold any byte."""
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def elide(shown: str, width: int, where: Elide, ellipsis: str = "…") -> str:
    """``shown`` in at most ``width`` characters, if it may be cut at all."""
    if len(shown) <= width or where is Elide.NEVER:
        return shown
    room = max(width - len(ellipsis), 0)
    if where is Elide.END:
        return shown[:room] + ellipsis
    head = (room + 1) // 2
    return shown[:head] + ellipsis + (shown[len(shown) - (room - head) :] if room > head else "")


def render_table(rows: Sequence[Row], columns: Sequence[Column], style: Style) -> str:
    """The table as text with a newline after each line; empty only without rows and header."""
    shown = [c for c in columns if style.wide or not c.wide]
    grid = [[cell(row, column, style.exact) for column in shown] for row in rows]
    widths = [
        max([len(c.title) if style.headers else 0, *(len(line[i]) for line in grid)])
        for i, c in enumerate(shown)
    ]
    if style.width is not None:
        shown, widths, grid = _fit(shown, widths, grid, style)
    lines = [_line([c.title for c in shown], shown, widths, None)] if style.headers else []
    lines += [_line(line, shown, widths, style) for line in grid]
    return "".join(line + "\n" for line in lines)


def _fit(
    columns: list[Column], widths: list[int], grid: list[list[str]], style: Style
) -> tuple[list[Column], list[int], list[list[str]]]:
    """Chooses the columns that have room on ``style.width`` and elides their cells."""
    assert style.width is not None
    wanted = [_capped(c, w) for c, w in zip(columns, widths, strict=True)]
    least = [w if c.elide is Elide.NEVER else min(w, max(ELIDE_FLOOR, len(c.title)))
             for c, w in zip(columns, wanted, strict=True)]  # fmt: skip
    kept = list(range(len(columns)))
    for index in reversed(range(1, len(columns))):
        if _total(least[i] for i in kept) <= style.width:
            break
        if not columns[index].keep:
            kept.remove(index)
    room = style.width - _total(least[i] for i in kept)
    final = {}
    for index in kept:
        final[index] = least[index] + max(0, min(room, wanted[index] - least[index]))
        room -= final[index] - least[index]
    chosen = [columns[i] for i in kept]
    return (
        chosen,
        [final[i] for i in kept],
        [
            [elide(line[i], final[i], columns[i].elide, style.ellipsis) for i in kept]
            for line in grid
        ],
    )


def _capped(column: Column, width: int) -> int:
    if column.max is None or column.elide is Elide.NEVER:
        return width
    return min(width, max(column.max, len(column.title)))


def _total(widths: Iterable[int]) -> int:
    chosen = list(widths)
    return sum(chosen) + len(GAP) * (len(chosen) - 1)


def _line(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], style: Style | None
) -> str:
    """One line; ``style`` None for the header, which is never coloured."""
    parts = []
    for index, (shown, column, width) in enumerate(zip(cells, columns, widths, strict=True)):
        padding = " " * (width - len(shown))
        painted = style.paint(shown) if style and column.state else shown
        if column.right:
            parts.append(padding + painted)
        else:
            # nothing after the last word of a line: copied lines stay clean
            parts.append(painted if index == len(columns) - 1 else painted + padding)
    return GAP.join(parts)
