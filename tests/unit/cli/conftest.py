"""Running command lines inside the test and as a process of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nodenet.cli import run

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command line left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as its one document; fails when there are two or none."""
        return json.loads(self.out)


Cli = Callable[..., Outcome]


@pytest.fixture(scope="session")
def demo() -> ModuleType:
    """The demonstration tree, loaded by path: test directories are no packages."""
    spec = importlib.util.spec_from_file_location("demo_tree", HERE / "demo_tree.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs ``nodenet ARGS`` in this process."""
    for name in ("NO_COLOR", "FORCE_COLOR", "NODENET_ID", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Outcome:
        status = run.run(arguments)
        return Outcome(status, *capsys.readouterr())

    return call


@pytest.fixture
def items(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, demo: ModuleType
) -> Cli:
    """Runs the demonstration tree in this process."""
    for name in ("NO_COLOR", "FORCE_COLOR", "NODENET_ID", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Outcome:
        status = run.run(arguments, demo.tree)
        return Outcome(status, *capsys.readouterr())

    return call


@pytest.fixture
def process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Starts a real process: ``process(["-m", "nodenet.cli.main", "version"], NO_COLOR="1")``."""

    def start(arguments: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        )

    return start
