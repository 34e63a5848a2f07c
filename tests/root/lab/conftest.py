"""A lab name of one's own, removed afterwards, and the look at what is left of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.kernel import netns
from nodenet.lab.cgroups import lab_cgroup
from nodenet.lab.down import down
from nodenet.lab.state import LabDir
from nodenet.paths import Instance

Remains = Callable[[str], list[str]]


@pytest.fixture
def remains() -> Remains:
    """A function: every trace of a lab on this machine, by what it is called."""

    def look(lab: str) -> list[str]:
        instance = Instance(lab)
        directory = LabDir(lab)
        cgroup = lab_cgroup(instance)
        paths = [instance.run, instance.pins, directory.path, directory.lock_path]
        found = [str(p) for p in (*paths, *([cgroup] if cgroup else [])) if p.exists()]
        return found + [name for name in netns.names() if name.startswith(f"nn-{lab}-")]

    return look


@pytest.fixture
def lab(remains: Remains) -> Iterator[LabDir]:
    """The directory of a lab that nobody else uses; afterwards nothing of it may be left."""
    directory = LabDir(f"t{secrets.token_hex(4)}")
    try:
        yield directory
    finally:
        down(directory)
    assert remains(directory.lab) == []
    assert not Path(f"/run/netns/nn-{directory.lab}-net").exists()
