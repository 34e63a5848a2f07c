"""Connections under a script: each test runs with the peer's bytes cut in several ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodenet.hbone.settings import Role

pytest.register_assert_rewrite("tests.unit.hbone.scripted")
from tests.unit.hbone.scripted import Play  # noqa: E402 after the line above


@pytest.fixture(params=[0, 1, 10, 4096], ids=["whole", "bytes", "tens", "pages"])
def chunk(request: pytest.FixtureRequest) -> int:
    """Bytes that arrive at a time."""
    size: int = request.param
    return size


@pytest.fixture
def server(chunk: int) -> Iterator[Play]:
    """A server past the greeting. Nothing may be left unsaid by the script."""
    play = Play(Role.SERVER, chunk=chunk)
    yield play
    play.done()


@pytest.fixture
def client(chunk: int) -> Iterator[Play]:
    """A client past the greeting. Nothing may be left unsaid by the script."""
    play = Play(Role.CLIENT, chunk=chunk)
    yield play
    play.done()
