"""The figures of the relay benchmark as a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import _relay_idle as idle
from bench import _relay_scene as scene
from bench._report import Report
from bench._samples import Row
from nodenet.errors import NotSupported, UsageError

_COLOURS: Final = {
    scene.DIRECT: "#9aa0a6",
    scene.HAPROXY: "#5b8def",
    scene.ZTUNNEL: "#e8710a",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one scale."""

    title: str
    unit: str
    scenes: frozenset[str]
    measures: frozenset[str]

    def bars(self, rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
        """Label to variant to row: a bar each, in the order of the rows."""
        chosen = [r for r in rows if r.scene in self.scenes and r.measure in self.measures]
        by_scene = len({row.scene for row in chosen}) > 1
        found: dict[str, dict[str, Row]] = {}
        for row in chosen:
            found.setdefault(row.scene if by_scene else row.measure, {})[row.variant] = row
        return found


def _panel(title: str, unit: str, scenes: Iterable[str], *measures: str) -> Panel:
    return Panel(title, unit, frozenset(scenes), frozenset(measures))


_BULK: Final = [each.name for each in scene.BULK]
_SINGLE: Final = [each.name for each in scene.TRIPS if each.connections == 1]
_MANY: Final = [each.name for each in scene.TRIPS if each.connections > 1]
_NEW: Final = [scene.NEW.name]
_IDLE: Final = [idle.SCENE]
PANELS: Final = (
    _panel("throughput", "Gbit/s", _BULK, scene.THROUGHPUT),
    _panel("CPU of both proxies", "s/GB", _BULK, scene.CPU),
    _panel("round trip p50", "us", _SINGLE, scene.P50),
    _panel("round trip p50", "us", _MANY, scene.P50),
    _panel("CPU of both proxies, a round trip", "us", _SINGLE + _MANY, scene.CPU),
    _panel("new connections", "1/s", _NEW, scene.RATE),
    _panel("CPU, a new connection", "us", _NEW, scene.OUTBOUND_CPU, scene.INBOUND_CPU),
    _panel("idle connections", "KiB", _IDLE, idle.OUTBOUND_MEMORY, idle.INBOUND_MEMORY),
)


def need(path: Path) -> None:
    """Before anything is measured: NotSupported without matplotlib, UsageError for a bad path."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NotSupported(
            "bench relay --plot", "matplotlib", hint=".venv/bin/pip install -e '.[plot]'"
        )
    if path.suffix != ".png":
        raise UsageError(f"--plot {path}: name a .png file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: no such directory")


def draw(report: Report, path: Path) -> None:
    """Writes the picture: medians as bars, the extremes of the rounds as whiskers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report.samples.rows()
    panels = [(panel, found) for panel in PANELS if (found := panel.bars(rows))]
    sizes = [len(found) + 1 for _, found in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 1 + 0.65 * sum(sizes)), height_ratios=sizes,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for axis, (panel, found) in zip(axes[:, 0], panels, strict=True):
        _draw_bars(axis, found)
        axis.set_title(panel.title, loc="left")
        axis.set_xlabel(panel.unit.replace("us", "µs"))
    axes[0, 0].legend(loc="best", frameon=False)
    facts = report.machine
    figure.suptitle(
        f"relay: median of {report.rounds} rounds; kernel {facts['kernel']}, {facts['cpu']}, "
        f"{facts['cpus']} CPUs, Python {facts['python']}",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_bars(axis: Any, found: dict[str, dict[str, Row]]) -> None:
    variants = [v for v in _COLOURS if any(v in cells for cells in found.values())]
    height = 0.8 / len(variants)
    for number, variant in enumerate(variants):
        places = [i + number * height for i, cells in enumerate(found.values()) if variant in cells]
        cells = [each[variant] for each in found.values() if variant in each]
        middle = [row.median for row in cells]
        spread = [
            [row.median - row.low for row in cells],
            [row.high - row.median for row in cells],
        ]
        axis.barh(
            places, middle, height * 0.9, xerr=spread, label=variant, color=_COLOURS[variant],
            error_kw={"elinewidth": 0.8, "ecolor": "#3c4043"},
        )  # fmt: skip
    axis.set_yticks([i + 0.4 - height / 2 for i in range(len(found))], list(found))
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
