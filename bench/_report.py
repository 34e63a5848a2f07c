"""The result of a benchmark as a table and as the one JSON document of ``-j``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bench._samples import Row, Samples, significant

Sense = Literal[">=", "<="]
_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """One figure the project wants, and what was got. It informs; no test depends on it."""

    name: str
    sense: Sense
    wanted: float
    got: float

    @property
    def ok(self) -> bool:
        """Whether it is met."""
        return self.got >= self.wanted if self.sense == ">=" else self.got <= self.wanted

    def document(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "name": self.name,
            "wanted": f"{self.sense} {self.wanted:g}",
            "got": significant(self.got),
            "ok": self.ok,
        }


@dataclass(slots=True, kw_only=True)
class Report:
    """What a benchmark found."""

    bench: str
    machine: dict[str, Any]
    rounds: int
    samples: Samples
    floors: list[Floor] = field(default_factory=list)
    extra_ratios: dict[str, float] = field(default_factory=dict)
    """Ratios that are not to the baseline."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know to read the numbers right."""

    def document(self) -> dict[str, Any]:
        """The JSON document; ``ok`` says that it ran, each floor has its own."""
        extra = {name: significant(value) for name, value in self.extra_ratios.items()}
        return {
            "ok": True,
            "bench": self.bench,
            "machine": self.machine,
            "rounds": self.rounds,
            "rows": [row.document() for row in self.samples.rows()],
            "ratios": self.samples.ratios() | extra,
            "floors": [floor.document() for floor in self.floors],
            "notes": self.notes,
        }

    def text(self) -> str:
        """The table for people, with the floors below it."""
        facts = ", ".join(f"{key} {value}" for key, value in self.machine.items() if value)
        parts = [f"{self.bench}: {self.rounds} rounds; {facts}"]
        parts += tables(self.samples.rows())
        if self.extra_ratios:
            pairs = [(name, number(value)) for name, value in self.extra_ratios.items()]
            parts.append(columns([("RATIO", ""), *pairs], left=1))
        if self.floors:
            parts.append(floor_table(self.floors))
        parts += [f"note: {note}" for note in self.notes]
        return "\n\n".join(parts)


def tables(rows: Iterable[Row]) -> list[str]:
    """One table a scene: a line a variant, a column a measure.

    A cell is the median, the extremes in brackets and the ratio to the baseline.
    """
    scenes: dict[str, list[Row]] = {}
    for row in rows:
        scenes.setdefault(row.scene, []).append(row)
    return [_scene_table(scene, found) for scene, found in scenes.items()]


def _scene_table(scene: str, rows: Sequence[Row]) -> str:
    variants = list(dict.fromkeys(row.variant for row in rows))
    measures = list(dict.fromkeys((row.measure, row.unit) for row in rows))
    cells = {(row.variant, row.measure): cell(row) for row in rows}
    # few variants and many measures: measures go down, variants across, as wide as a terminal
    head = [scene.upper(), "UNIT", *variants]
    body = [[m, unit, *(cells.get((v, m), "-") for v in variants)] for m, unit in measures]
    return columns([head, *body], left=2)


def cell(row: Row) -> str:
    """``12.3 (11.9-12.8) x1.16``."""
    shown = f"{number(row.median)} ({number(row.low)}-{number(row.high)})"
    return shown if row.ratio is None else f"{shown} x{row.ratio:.3f}"


def floor_table(floors: Iterable[Floor]) -> str:
    """Each floor with what was wanted and got."""
    lines = [
        (f.name, f"{f.sense} {f.wanted:g}", number(f.got), "met" if f.ok else "MISSED")
        for f in floors
    ]
    return columns([("FLOOR", "WANTED", "GOT", ""), *lines], left=1)


def columns(lines: Sequence[Sequence[str]], *, left: int) -> str:
    """Aligned text, the first ``left`` columns to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        _GAP.join(
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float) -> str:
    """Three to four digits, whatever the size: ``0.0123``, ``4.50``, ``78.9``, ``12346``."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:#.3g}" if abs(value) < 100 else f"{value:.1f}"
