"""What was measured, round by round, and what follows from it: medians, ratios, rows.

A ratio is taken within each round, between samples seconds apart, and then its median over the
rounds: what the machine does besides changes slowly against that and cancels out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Key = tuple[str, str]
"""(scene, measure)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measure of one variant: median and extremes over the rounds."""

    scene: str
    measure: str
    unit: str
    variant: str
    median: float
    low: float
    high: float
    ratio: float | None
    """To the scene's baseline; None for the baseline itself, or without one."""

    def document(self) -> dict[str, Any]:
        """The JSON object."""
        ratio = None if self.ratio is None else significant(self.ratio)
        return {
            "scene": self.scene,
            "measure": self.measure,
            "unit": self.unit,
            "variant": self.variant,
            "median": significant(self.median),
            "min": significant(self.low),
            "max": significant(self.high),
            "ratio": ratio,
        }


class Samples:
    """Values by scene, measure and variant, in the order of the rounds.

    Every variant of a measure is recorded once a round; the index is the round.
    """

    def __init__(self, baseline: str = "none", baselines: Mapping[str, str] | None = None) -> None:
        """``baselines`` are those of scenes that have another one."""
        self._baseline = baseline
        self._baselines = dict(baselines or {})
        self._units: dict[Key, str] = {}
        self._values: dict[Key, dict[str, list[float]]] = {}

    def baseline(self, scene: str) -> str:
        """The variant that the scene's others are compared with."""
        return self._baselines.get(scene, self._baseline)

    def record(self, scene: str, measure: str, unit: str, variant: str, value: float) -> None:
        """Adds the next round's value."""
        key = (scene, measure)
        self._units[key] = unit
        self._values.setdefault(key, {}).setdefault(variant, []).append(value)

    def values(self, scene: str, measure: str, variant: str) -> list[float]:
        """The values so far; KeyError for what was never recorded."""
        return self._values[scene, measure][variant]

    def median(self, scene: str, measure: str, variant: str) -> float:
        """Median over the rounds."""
        return statistics.median(self.values(scene, measure, variant))

    def ratio(self, scene: str, measure: str, over: str, under: str) -> float:
        """Median over the rounds of ``over`` divided by ``under``."""
        return self._over_rounds(scene, measure, (over, under), lambda a, b: a / b)

    def added_ratio(self, scene: str, measure: str, over: str, under: str) -> float:
        """How much ``over`` adds to the baseline, divided by how much ``under`` adds to it.

        Of the medians of what is added: in a single round what ``under`` adds may be close to
        nothing, and the quotient anything.
        """
        added = [
            self._over_rounds(scene, measure, (name, self.baseline(scene)), lambda a, b: a - b)
            for name in (over, under)
        ]
        return added[0] / added[1]

    def rows(self) -> list[Row]:
        """Every measure in the order it was first recorded, its variants likewise."""
        return [
            Row(
                scene=scene,
                measure=measure,
                unit=self._units[scene, measure],
                variant=variant,
                median=statistics.median(values),
                low=min(values),
                high=max(values),
                ratio=self._ratio_to_baseline(scene, measure, variant),
            )
            for (scene, measure), variants in self._values.items()
            for variant, values in variants.items()
        ]

    def ratios(self) -> dict[str, float]:
        """``scene: measure, variant/baseline`` to its ratio."""
        return {
            f"{row.scene}: {row.measure}, {row.variant}/{self.baseline(row.scene)}": significant(
                row.ratio
            )
            for row in self.rows()
            if row.ratio is not None
        }

    def _ratio_to_baseline(self, scene: str, measure: str, variant: str) -> float | None:
        baseline = self.baseline(scene)
        if variant == baseline or baseline not in self._values[scene, measure]:
            return None
        return self.ratio(scene, measure, variant, baseline)

    def _over_rounds(
        self,
        scene: str,
        measure: str,
        variants: tuple[str, str],
        each: Callable[[float, float], float],
    ) -> float:
        pairs = zip(*(self.values(scene, measure, name) for name in variants), strict=True)
        return statistics.median(each(a, b) for a, b in pairs)


def significant(value: float, digits: int = 4) -> float:
    """Rounded to so many significant digits; measurements have no more."""
    return float(f"{value:.{digits}g}")
