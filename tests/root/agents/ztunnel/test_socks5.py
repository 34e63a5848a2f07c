"""Applications that ask for a connection instead of making one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.meshed import B4, B6, Meshed
from tests.root.agents.ztunnel.proxied import ends_in_reset

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def world(
    capture: Capture, topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Meshed]:
    """Two pods in a mesh whose proxies listen for SOCKS5."""
    monkeypatch.setenv("UNSTABLE_ENABLE_SOCKS5", "true")
    made = Meshed(capture, topology, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _asked(world: Meshed, address: bytes, port: int) -> socket.socket:
    client = world.connect(world.a, "127.0.0.1", 15080)
    client.sendall(b"\x05\x01\x00")
    assert client.recv(2) == b"\x05\x00"
    client.sendall(b"\x05\x01\x00" + address + port.to_bytes(2, "big"))
    assert client.recv(10) == b"\x05\x00\x00\x01" + bytes(6)
    return client


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(b"\x01" + socket.inet_aton(B4), id="ipv4"),
        pytest.param(b"\x04" + socket.inet_pton(socket.AF_INET6, B6), id="ipv6"),
        pytest.param(b"\x03\x09" + B4.encode(), id="text"),
        pytest.param(b"\x03\x0ab.test.svc", id="hostname"),
    ],
)
def test_what_is_asked_for_goes_through_the_mesh(world: Meshed, address: bytes) -> None:
    with world.listen(world.b, 8080) as listener:
        port = 80 if b"svc" in address else 8080
        with _asked(world, address, port) as client:
            client.sendall(b"question")
            server, _ = listener.accept()
            with server:
                assert server.recv(100) == b"question"
                server.sendall(b"answer")
                assert client.recv(100) == b"answer"
    assert 'src.identity="spiffe://cluster.local/ns/test/sa/a"' in world.access("n2", "complete")


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", b"", id="http"),
        pytest.param(b"\x05\x01\x02", b"\x05\xff", id="password-only"),
        pytest.param(b"\x05\x01\x00\x05\x02\x00\x01\0\0\0\0\0\0", b"\x05\x00\x05\x07", id="bind"),
    ],
)
def test_what_is_no_request_is_refused(world: Meshed, request_: bytes, reply: bytes) -> None:
    with world.connect(world.a, "127.0.0.1", 15080) as client:
        client.sendall(request_)
        got = b""
        try:
            while piece := client.recv(100):
                got += piece
        except ConnectionResetError:
            pass
        assert got.startswith(reply)
        assert reply or not got


def test_the_listener_is_on_loopback_only(world: Meshed) -> None:
    with pytest.raises(ConnectionRefusedError):
        with world.b.entered():
            socket.create_connection(("127.0.0.2", 15080), timeout=20)
    with world.connect(world.a, B4, 15080) as client:
        assert ends_in_reset(client)
