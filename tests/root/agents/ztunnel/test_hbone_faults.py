"""What peers, applications and operators do wrong, and what both ends see of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.meshed import B4, VIP, Meshed, deny
from tests.root.agents.ztunnel.proxied import ends_in_reset

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def world(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Meshed]:
    """Two pods in a mesh; no proxy runs yet."""
    made = Meshed(capture, topology, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_a_denied_client_is_reset_and_both_logs_say_why(world: Meshed) -> None:
    world.mesh["policies"] = [deny("no-a", "a")]
    world.start()
    with world.listen(world.b) as listener:
        with world.connect(world.a, B4, listener.getsockname()[1]) as client:
            assert ends_in_reset(client)
    assert 'error="http status: 401 Unauthorized"' in world.access("n1", "connection complete")
    line = world.access("n2", "connection complete")
    assert "explicitly denied by: test/no-a" in line
    assert 'src.identity="spiffe://cluster.local/ns/test/sa/a"' in line


def test_a_new_policy_ends_what_it_would_not_let_in(world: Meshed) -> None:
    world.start()
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        world.mesh["policies"] = [deny("no-a", "a")]
        world.write()
        assert ends_in_reset(client)
        assert ends_in_reset(server)
    assert "connection closed due to policy change" in world.access("n2", "connection complete")


def test_a_client_that_becomes_somebody_else_is_seen_as_that(world: Meshed) -> None:
    world.start()
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
    world.access("n2", "connection complete.*sa/a")
    world.mesh["workloads"][0]["serviceAccount"] = "other"
    world.write()
    for proxy in world.proxies.values():
        proxy.wait_for(r"is in force: version [2-9]")
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
    world.access("n2", "connection complete.*sa/other")


def test_a_bad_mesh_file_changes_nothing_and_the_log_names_the_line(world: Meshed) -> None:
    world.start()
    good = world.mesh_file.read_text()
    world.mesh_file.write_text(good + "nonsense: 1\n")
    line = len(good.splitlines()) + 1
    world.proxies["n1"].wait_for(rf"mesh\.yaml:{line}: .*nonsense")
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"


def test_a_service_is_reached_by_its_address(world: Meshed) -> None:
    world.start()
    with world.listen(world.b, 8080) as listener, world.connect(world.a, VIP, 80) as client:
        client.sendall(b"x")
        server, _ = listener.accept()
        with server:
            assert server.recv(1) == b"x"
        assert client.getpeername()[:2] == (VIP, 80)
    assert 'dst.service="b.test.svc"' in world.access("n1", "connection complete")
    assert 'dst.service="b.test.svc"' in world.access("n2", "connection complete")


def test_an_application_that_refuses_is_a_reset(world: Meshed) -> None:
    world.start()
    with world.connect(world.a, B4, 9) as client:
        assert ends_in_reset(client)
    assert "http status: 503 Service Unavailable" in world.access("n1", "connection complete")
    assert "connection failed: Connection refused" in world.access("n2", "connection complete")


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_reset_reaches_the_other_side_as_a_reset(world: Meshed, who: str) -> None:
    world.start()
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        near, far = (client, server) if who == "client" else (server, client)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        near.close()
        assert ends_in_reset(far)


def test_another_trust_domain_is_refused_in_the_handshake(world: Meshed) -> None:
    world.mesh["workloads"][0]["trustDomain"] = "other.example"
    world.start()
    with world.listen(world.b) as listener:
        with world.connect(world.a, B4, listener.getsockname()[1]) as client:
            assert ends_in_reset(client)
    world.access("n2", "connection failed.*trust domain")


def test_a_peer_with_another_name_is_refused(world: Meshed) -> None:
    mistaken = {**world.mesh, "workloads": [dict(each) for each in world.mesh["workloads"]]}
    mistaken["workloads"][1]["serviceAccount"] = "somebody"
    world.meshes["n1"] = mistaken
    world.start()
    with world.listen(world.b) as listener:
        with world.connect(world.a, B4, listener.getsockname()[1]) as client:
            assert ends_in_reset(client)
    line = world.access("n1", "connection complete")
    assert "server is spiffe://cluster.local/ns/test/sa/b" in line
    assert "expected spiffe://cluster.local/ns/test/sa/somebody" in line


def test_the_peer_is_gone(world: Meshed) -> None:
    world.start()
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        world.proxies["n2"].process.kill()
        assert ends_in_reset(client)
        # its sockets are closed by the kernel, which sends what close() sends
        assert server.recv(1) == b""
