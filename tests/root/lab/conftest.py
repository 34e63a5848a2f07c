"""A lab name of one's own, removed afterwards, and the look at what is left of it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from nodenet.lab.down import down
from nodenet.lab.down import remains as look
from nodenet.lab.state import LabDir

Remains = Callable[[str], list[str]]


@pytest.fixture
def remains() -> Remains:
    """A function: every trace of a lab on this machine, its directory and lock included."""

    def find(lab: str) -> list[str]:
        directory = LabDir(lab)
        paths = (directory.path, directory.lock_path)
        return [*look(directory), *(str(path) for path in paths if path.exists())]

    return find


@pytest.fixture
def lab(remains: Remains) -> Iterator[LabDir]:
    """The directory of a lab that nobody else uses; afterwards nothing of it may be left."""
    directory = LabDir(f"t{secrets.token_hex(4)}")
    try:
        yield directory
    finally:
        down(directory)
    assert remains(directory.lab) == []
