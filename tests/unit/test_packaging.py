"""The package map of pyproject.toml names every package there is, and nothing else."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_is_listed() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    found = {"nodenet.bpf"}  # data only: no __init__.py
    for directory, _, files in os.walk(ROOT / "nodenet", followlinks=True):
        if "__init__.py" in files:
            found.add(".".join(Path(directory).relative_to(ROOT).parts))
    assert listed == found


def test_the_top_level_rooms_are_links() -> None:
    for name in ("agents", "bpf"):
        link = ROOT / "nodenet" / name
        assert link.is_symlink()
        assert os.readlink(link) == f"../{name}"


def test_what_kernel_code_needs_travels_with_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["nodenet.bpf"]
    bpf = ROOT / "bpf"
    shipped = {p for pattern in patterns for p in bpf.glob(pattern)}
    wanted = {p for p in bpf.rglob("*") if p.suffix in (".c", ".h")} | {bpf / "LICENSE"}
    assert shipped == wanted
