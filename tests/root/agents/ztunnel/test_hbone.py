"""From pod to pod through two proxies and HBONE."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.meshed import A4, A6, B4, B6, Meshed

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def world(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Meshed]:
    """Two pods in a mesh; no proxy runs yet."""
    made = Meshed(capture, topology, tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize(("host", "client_host"), [(B4, A4), (B6, A6)])
def test_bytes_and_ends_go_both_ways(world: Meshed, host: str, client_host: str) -> None:
    world.start()
    with world.pair(host) as (client, server):
        assert client.getpeername()[0] == host
        assert str(server.getpeername()[0]).removeprefix("::ffff:") == client_host
        client.sendall(b"hello world")
        assert server.recv(100) == b"hello world"
        server.sendall(b"hello worldhello world")
        server.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b"hello worldhello world"
        assert client.recv(100) == b""
        client.sendall(b"!")
        client.shutdown(socket.SHUT_WR)
        assert server.recv(100) == b"!"
        assert server.recv(100) == b""
    out, into = world.access("n1", "connection complete"), world.access("n2", "connection complete")
    assert "bytes_sent=12 bytes_recv=22" in out
    assert "bytes_sent=22 bytes_recv=12" in into
    for line in (out, into):
        assert 'src.identity="spiffe://cluster.local/ns/test/sa/a"' in line
        assert 'dst.identity="spiffe://cluster.local/ns/test/sa/b"' in line
