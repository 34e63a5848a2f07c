"""The picture of the relay benchmark: what stands in which panel, and what it needs."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from bench import _relay_idle as idle
from bench import _relay_plot as plot
from bench import _relay_scene as scene
from bench._samples import Samples
from nodenet.errors import NotSupported, UsageError


@pytest.fixture
def samples() -> Samples:
    found = Samples(baseline=scene.HAPROXY)
    for variant, value in ((scene.HAPROXY, 4.0), (scene.ZTUNNEL, 5.0)):
        for each in scene.BULK[:2]:
            found.record(each.name, scene.THROUGHPUT, "Gbit/s", variant, value)
        found.record(scene.TRIPS[0].name, scene.RATE, "1/s", variant, 9000)
        found.record(scene.NEW.name, scene.RATE, "1/s", variant, 1000)
        found.record(idle.SCENE, idle.OUTBOUND_MEMORY, "KiB", variant, 30)
        found.record(idle.SCENE, idle.INBOUND_MEMORY, "KiB", variant, 20)
    return found


def test_bars_are_named_by_what_tells_them_apart(samples: Samples) -> None:
    rows = samples.rows()
    drawn = {panel.title: list(bars) for panel in plot.PANELS if (bars := panel.bars(rows))}
    assert drawn == {
        "throughput": ["to the server, 1 stream", "to the client, 1 stream"],
        "new connections": ["a second"],
        "idle connections": ["outbound proxy memory each", "inbound proxy memory each"],
    }


def test_a_bar_has_every_variant(samples: Samples) -> None:
    bars = plot.PANELS[0].bars(samples.rows())
    assert {name: row.median for name, row in bars["to the client, 1 stream"].items()} == {
        scene.HAPROXY: 4.0,
        scene.ZTUNNEL: 5.0,
    }


def installed(monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)


def test_without_matplotlib_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, None)
    with pytest.raises(NotSupported, match="needs matplotlib") as error:
        plot.need(tmp_path / "x.png")
    assert error.value.hint == ".venv/bin/pip install -e '.[plot]'"


@pytest.mark.parametrize(("name", "why"), [("x.pdf", "a .png file"), ("no/x.png", "no such dir")])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, why: str
) -> None:
    installed(monkeypatch, ModuleSpec("matplotlib", None))
    with pytest.raises(UsageError, match=why):
        plot.need(tmp_path / name)
    plot.need(tmp_path / "x.png")
