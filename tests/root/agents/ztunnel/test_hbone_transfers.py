"""Many transfers at once through HBONE: whole, and everybody counts the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.loads import MIB, Account, run_transfers, wait_for_accounts
from tests.root.agents.ztunnel.meshed import Meshed

#: Batches of transfers, when the changes do not come: a minute and more.
MOST_BATCHES = 30

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
    total = Account(0, 0, 0)
    # 300 transfers, and more on a machine that is done with them before three certificates
    for batch in range(MOST_BATCHES):
        total += run_transfers(world, range(batch * 100, batch * 100 + 100), most=64 * MIB)
        if batch >= 2 and all(_changed(world, node) for node in ("n1", "n2")):
            break
    else:
        pytest.fail("neither three certificates nor three policies came in all the transfers")
    wait_for_accounts(world, total)


def _changed(world: Meshed, node: str) -> bool:
    """Whether certificates and policies both changed three times there."""
    text = world.proxies[node].text()
    return min(text.count("certificate of spiffe"), text.count("is in force: version")) >= 3
