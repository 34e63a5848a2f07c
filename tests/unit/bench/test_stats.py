"""The floors of `bench.stats`, from samples."""

from __future__ import annotations

from bench import _kernel_scene as kernel
from bench import _stats_scene as scene
from bench import stats
from bench._samples import Samples


def test_floors_compare_recorded_connections_with_unknown_ones() -> None:
    samples = Samples()
    for which in (scene.OPENED, scene.ACCEPTED):
        for variant, trip, bulk in (("none", 14.0, 2.0), ("recorded", 14.7, 1.98)):
            samples.record(which, kernel.ROUND_TRIP, "us", variant, trip)
            samples.record(which, kernel.BULK, "GB/s", variant, bulk)
    assert [(floor.name, floor.ok) for floor in stats.cost_floors(samples)] == [
        ("opened by the pod: 64 B round trip, recorded/none", False),
        ("opened by the pod: bulk, recorded/none", True),
        ("accepted by the pod: 64 B round trip, recorded/none", False),
        ("accepted by the pod: bulk, recorded/none", True),
    ]


def test_the_variants_begin_with_the_baseline() -> None:
    names = [variant.name for variant in scene.variants(scene.OPENED, 1)]
    assert names == ["none", "attached", "recorded", "watched"]
