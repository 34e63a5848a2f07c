"""A second attempt, where the first one has come to nothing before a byte was sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.h2_peer import Behaviour, H2Peer
from tests.root.agents.ztunnel.meshed import B4, VIP, Meshed, workload
from tests.root.agents.ztunnel.peers import ID_B, ForeignProxy, read, tls

pytestmark = [pytest.mark.root, pytest.mark.bpf]

#: An address where nobody is.
NOBODY4 = "10.99.0.77"


@pytest.fixture
def world(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Meshed]:
    """One captured pod; where the other one's proxy should be there is room for a test's."""
    made = Meshed(capture, topology, tmp_path)
    services = {"test/b.test.svc": {80: 8080}}
    made.mesh["workloads"].append(workload("c", "n2", NOBODY4, services=services))
    try:
        made.start("--connect-timeout=1", nodes=("n1",))
        yield made
    finally:
        made.stop()


def talks(world: Meshed, host: str) -> None:
    """A connection from a to an echo."""
    with world.connect(world.a, host, 80) as client:
        client.sendall(b"hello")
        assert read(client, 5) == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


class HangsUp(Behaviour):
    """Its first connection ends at the second request: it was restarted meanwhile."""

    def request(self, peer: H2Peer, stream: int) -> None:
        """See `Behaviour`."""
        if stream == 3:
            peer.lost = True
        else:
            super().request(peer, stream)


def test_a_pooled_connection_that_is_gone_is_made_again(world: Meshed) -> None:
    context = tls(world.directory / "ca", ID_B, server=True)
    with ForeignProxy(world.b, context, HangsUp()) as other:
        talks(world, B4)
        talks(world, B4)
        assert [list(peer.streams) for peer in other.peers] == [[1, 3], [1]]


def test_what_is_logged_is_the_endpoint_that_answered(world: Meshed) -> None:
    context = tls(world.directory / "ca", ID_B, server=True)
    with ForeignProxy(world.b, context):
        for _ in range(6):  # half of them begin with the endpoint where nobody is
            talks(world, VIP)
            line = world.access("n1", "connection complete")
            assert f"dst.addr={B4}:15008" in line
            assert 'dst.workload="b"' in line
            assert "sa/b" in line
