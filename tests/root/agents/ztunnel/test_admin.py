"""What a running proxy tells of its connections: metrics, admin surface, the joins of `conn`."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodenet.agents.ztunnel.admin_socket import admin_socket
from nodenet.capture.session import Capture
from nodenet.httpd.client import TcpAddress, fetch
from nodenet.lab.topology import Topology
from tests.interop.peers import free_ports
from tests.root.agents.ztunnel.meshed import B4, Meshed, deny

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def world(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[Meshed]:
    """Two pods in a mesh; no proxy runs yet."""
    made = Meshed(capture, topology, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def nodenet(world: Meshed, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, about the world's instance."""
    instance = world.capture.instance.id or ""
    return subprocess.run(
        [sys.executable, "-m", "nodenet.cli.main", "--id", instance, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def answer(world: Meshed, *arguments: str) -> Any:
    """Its JSON."""
    done = nodenet(world, *arguments, "-j")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def exchange(client: socket.socket, server: socket.socket) -> None:
    """11 bytes there, 22 back."""
    client.sendall(b"hello world")
    assert server.recv(100) == b"hello world"
    server.sendall(b"hello world" * 2)
    got = b""
    while len(got) < 22:
        got += client.recv(100)


def reset(world: Meshed, port: int) -> None:
    """A connection from a to b that comes to nothing."""
    with pytest.raises(ConnectionResetError), world.connect(world.a, B4, port) as client:
        client.sendall(b"x")
        client.recv(1)


def value(text: str, name: str, **labels: str) -> float:
    """The value of the one line of a metric with these labels."""
    found = [
        line
        for line in text.splitlines()
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items())
    ]
    assert len(found) == 1, found
    return float(found[0].rpartition(" ")[2])


def test_the_ports_answer_and_a_failure_is_counted(world: Meshed) -> None:
    stats, ready = free_ports(2)
    world.start(f"--stats=127.0.0.1:{stats}", f"--readiness=127.0.0.1:{ready}", nodes=("n1",))
    assert fetch(TcpAddress("127.0.0.1", ready), "/healthz/ready").body == b"ready\n"
    with world.listen(world.b) as listener:
        port = listener.getsockname()[1]
        reset(world, port)  # nobody takes HBONE on the other node
    text = fetch(TcpAddress("127.0.0.1", stats), "/stats/prometheus").text
    labels = {"reporter": "source", "source_workload": "a", "destination_workload": "b"}
    opened = value(text, "istio_tcp_connections_opened_total", response_flags="-", **labels)
    assert opened == 1
    assert value(text, "istio_tcp_connections_failed_total", **labels) == 1
    assert value(text, "istio_tcp_connections_closed_total", **labels) == 1
    assert "workload_manager_active_proxy_count 1.0" in text


def test_a_connection_is_told_of_while_it_lives_and_after(world: Meshed) -> None:
    world.mesh["policies"].append(deny("not-c", "c"))
    world.start()
    with world.pair() as (client, server):
        exchange(client, server)
        out, into = sorted(answer(world, "ztunnel", "connections"), key=lambda r: r["dir"] == "in")
        assert (out["pod"], out["security"], out["node"]) == ("test/a", "mtls", "n1")
        assert (out["bytes_sent"], out["bytes_received"]) == (11, 22)
        assert (into["pod"], into["bytes_sent"], into["bytes_received"]) == ("test/b", 22, 11)
        assert into["peer_identity"] == "spiffe://cluster.local/ns/test/sa/a"
        # the kernel's records of the applications' own sockets
        for record in answer(world, "conn", "list"):
            half = answer(world, "conn", "show", record["id"])["ztunnel"]
            assert half["security"] == "mtls"
            assert half["pod"] == record["pod"]
        summary = answer(world, "conn", "summary", "--by", "process", "--security", "mtls")
        assert summary["totals"]["open"] == 2
        assert summary["totals"]["plain_percent"] == 0.0
        assert answer(world, "conn", "summary", "--security", "plain")["rows"] == []
    world.access("n1", "connection complete")
    world.access("n2", "connection complete")
    closed = [r["id"] for r in answer(world, "conn", "list", "--closed") if r["pod"] == "test/a"]
    half = answer(world, "conn", "show", closed[0])["ztunnel"]
    assert (half["flag"], half["bytes_sent"]) == ("-", 11)
    assert answer(world, "conn", "summary")["plain_known"] is True


def test_the_dump_has_the_live_connections_and_certificates(world: Meshed) -> None:
    world.start()
    with world.pair() as (client, server):
        exchange(client, server)
        dump = json.loads(fetch(admin_socket(world.capture.instance, "n2"), "/config_dump").body)
        (state,) = dump["workloadState"].values()
        assert [c["protocol"] for c in state["connections"]["inbound"]] == ["HBONE"]
        assert [c["state"] for c in dump["certificates"]] == ["Available"]


def test_what_a_policy_refuses_is_counted_and_explained(world: Meshed) -> None:
    world.mesh["policies"].append(deny("not-a", "a"))
    world.start()
    with world.listen(world.b) as listener:
        port = listener.getsockname()[1]
        reset(world, port)
    (policy,) = answer(world, "ztunnel", "policies")
    assert (policy["name"], policy["hits_deny"]) == ("not-a", 1)
    found = answer(world, "ztunnel", "explain", "test/a", f"{B4}:{port}", "--expect", "denied")
    assert found["policy"] == "test/not-a"
    failed = world.access("n1", "connection complete")
    assert re.search(r'error="http status: 401', failed)


def test_quitting_drains(world: Meshed) -> None:
    world.start(nodes=("n1",))
    path = admin_socket(world.capture.instance, "n1")
    assert fetch(path, "/quitquitquit", method="POST").text == "shutdown now"
    world.proxies["n1"].wait_for("drained: 0 connections cut")
    assert not path.exists()
