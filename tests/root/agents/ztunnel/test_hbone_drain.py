"""What other proxies see of a proxy that ends."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.h2_peer import H2Peer
from tests.root.agents.ztunnel.hostile import Strange
from tests.root.agents.ztunnel.meshed import B4

pytestmark = [pytest.mark.root, pytest.mark.bpf]

_HEADER = struct.Struct("!IBI")
HEADERS, SETTINGS, PING, GOAWAY = 1, 4, 6, 7


@pytest.fixture
def strange(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Strange]:
    """A mesh and a stranger."""
    made = Strange(capture, topology, tmp_path)
    try:
        made.mesh.start()
        yield made
    finally:
        made.mesh.stop()


class Frames:
    """The frames a proxy sends, as they come: the h2 package takes nothing after a GOAWAY."""

    def __init__(self, peer: H2Peer) -> None:
        self._sock = peer.sock
        self._sock.settimeout(15)
        self._data = b""

    def until(self, kind: int) -> tuple[int, bytes]:
        """The next one of a kind: stream and payload; EOFError when the connection ends before."""
        while True:
            head, _, stream = _HEADER.unpack(self._exactly(9))
            payload = self._exactly(head >> 8)
            if head & 0xFF == kind:
                return stream, payload

    def _exactly(self, count: int) -> bytes:
        while len(self._data) < count:
            more = self._sock.recv(1 << 16)
            if not more:
                raise EOFError
            self._data += more
        taken, self._data = self._data[:count], self._data[count:]
        return taken


def test_a_request_that_crosses_the_goaway_is_served(strange: Strange) -> None:
    """RFC 9113 section 6.8: the peer may open streams until it has read that it should not."""
    proxy = strange.mesh.proxies["n2"]
    with strange.mesh.listen(strange.mesh.b) as listener, strange.client() as peer:
        peer.flush()
        frames = Frames(peer)
        frames.until(SETTINGS)  # the proxy's handshake is over too
        os.kill(proxy.pid, signal.SIGTERM)
        proxy.wait_for("draining")
        _, last = frames.until(GOAWAY)
        assert last[:4] == b"\x7f\xff\xff\xff"
        stream = peer.connect(f"{B4}:{listener.getsockname()[1]}")
        peer.flush()
        assert frames.until(HEADERS)[0] == stream
        server, _ = listener.accept()
        server.close()


def test_without_tunnels_it_ends_when_the_goaway_has_been_read(strange: Strange) -> None:
    proxy = strange.mesh.proxies["n2"]
    with strange.client() as peer:
        peer.flush()
        frames = Frames(peer)
        frames.until(SETTINGS)  # the proxy's handshake is over too
        os.kill(proxy.pid, signal.SIGTERM)
        _, opaque = frames.until(PING)
        peer.raw(b"\0\0\x08\x06\1\0\0\0\0" + opaque)
        _, last = frames.until(GOAWAY)
        assert last[:4] == bytes(4)
        with pytest.raises(EOFError):
            frames.until(HEADERS)
