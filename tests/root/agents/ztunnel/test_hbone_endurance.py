"""Many short connections through HBONE: nothing is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.loads import churn
from tests.root.agents.ztunnel.meshed import Meshed

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def world(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Meshed]:
    """Two pods in a mesh; no proxy runs yet."""
    made = Meshed(capture, topology, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_short_connections_leave_nothing(world: Meshed) -> None:
    """In asyncio's debug mode, as all proxies of the tests, which says what was not awaited."""
    world.start("--stats=127.0.0.1:0", "--log-level=info,access=error")
    churn(world, 10_000, slice_ms=2000)
