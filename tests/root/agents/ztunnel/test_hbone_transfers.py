"""Many transfers at once through HBONE: whole, and everybody counts the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.loads import MIB, run_transfers, wait_for_accounts
from tests.root.agents.ztunnel.meshed import Meshed

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def world(
    capture: Capture, topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Meshed]:
    """Two pods in a mesh whose certificates live for seconds, with few streams a connection."""
    # renewed every three seconds, and a handshake on a busy machine may take one
    monkeypatch.setenv("SECRET_TTL", "6s")
    monkeypatch.setenv("POOL_MAX_STREAMS_PER_CONNECTION", "5")
    monkeypatch.setenv("POOL_UNUSED_RELEASE_TIMEOUT", "100ms")
    made = Meshed(capture, topology, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_transfers_while_certificates_and_policies_change(world: Meshed) -> None:
    world.start("--stats=127.0.0.1:0", "--log-level=debug")
    wait_for_accounts(world, run_transfers(world, range(300), most=64 * MIB))
    for node in ("n1", "n2"):
        text = world.proxies[node].text()
        assert text.count("certificate of spiffe") >= 3
        assert text.count("is in force: version") >= 3
