"""Connections to 15008 that never say who they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.agents.ztunnel.mesh_pod import MAX_STRANGERS
from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.hostile import Strange
from tests.root.agents.ztunnel.meshed import B4

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def strange(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Strange]:
    """A mesh and a stranger."""
    made = Strange(capture, topology, tmp_path)
    try:
        made.mesh.start()
        yield made
    finally:
        made.mesh.stop()


def test_those_that_are_silent_make_way(strange: Strange) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(strange.raw()) for _ in range(MAX_STRANGERS)]
        with strange.mesh.listen(strange.mesh.b) as listener, strange.client() as peer:
            stream = peer.connect(f"{B4}:{listener.getsockname()[1]}")
            assert peer.answer(stream) == 200
            server, _ = listener.accept()
            server.close()
        assert silent[0].recv(1) == b""
        silent[-1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)
