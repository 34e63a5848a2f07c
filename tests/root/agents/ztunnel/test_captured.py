"""Under the real capture: the kernel programs redirect, the proxy carries."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.options import EnrolOptions
from nodenet.capture.session import Capture, agent_cgroup_path
from nodenet.kernel.cgroups import Cgroup
from nodenet.lab.topology import Namespace, Topology
from tests.root.agents.ztunnel.proxied import (
    DEADLINE,
    OUT4,
    OUT6,
    POD4,
    POD6,
    ProxyProcess,
    accept,
    is_reset,
)

pytestmark = [pytest.mark.root, pytest.mark.bpf]


class CapturedPod:
    """An enrolled pod, an outside and a running proxy."""

    def __init__(self, capture: Capture, pod: Namespace, out: Namespace, proxy: ProxyProcess):
        self.pod = pod
        self.out = out
        self.proxy = proxy
        self.capture = capture

    def carry(self, client_in: Namespace, server_in: Namespace, host: str) -> tuple[str, str]:
        """Exchanges bytes both ways; (address the server sees, address the client sees)."""
        with server_in.entered():
            listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        listener.settimeout(DEADLINE)
        with client_in.entered():
            client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        client.settimeout(DEADLINE)
        with listener, client:
            client.connect((host, listener.getsockname()[1]))
            assert client.getpeername()[1] == listener.getsockname()[1]
            client.sendall(b"question")
            with accept(listener) as server:
                seen = str(server.getpeername()[0]).removeprefix("::ffff:")
                assert server.recv(100) == b"question"
                server.sendall(b"answer")
                server.shutdown(socket.SHUT_WR)
                assert client.recv(100) == b"answer"
                assert client.recv(100) == b""
                client.shutdown(socket.SHUT_WR)
                assert server.recv(100) == b""
        return seen, host

    def carried(self) -> int:
        """Lines of the access log so far."""
        return self.proxy.text().count("\taccess\t")


@pytest.fixture
def captured(capture: Capture, topology: Topology, tmp_path: Path) -> Iterator[CapturedPod]:
    """A pod enrolled on the ebpf backend while its proxy runs."""
    pod, out = topology.pair("pod", "out")
    cgroup = Cgroup.open(agent_cgroup_path(capture.instance))
    proxy = ProxyProcess(capture.instance, cgroup, tmp_path / "log", "--access-log")
    try:
        proxy.ready()
        result = capture.enroll(
            pod.path, name="test/pod", options=EnrolOptions(backend="ebpf"), wait=DEADLINE
        )
        assert set(result.listeners) >= {15001, 15006}
        yield CapturedPod(capture, pod, out, proxy)
        assert "Traceback" not in proxy.text()
    finally:
        proxy.stop()


@pytest.mark.parametrize(("host", "pod"), [(OUT4, POD4), (OUT6, POD6), (f"::ffff:{OUT4}", POD4)])
def test_outbound(captured: CapturedPod, host: str, pod: str) -> None:
    assert captured.carry(captured.pod, captured.out, host)[0] == pod
    line = captured.proxy.wait_for(r"\taccess\t(.*)")[1]
    assert 'direction="outbound" bytes_sent=8 bytes_recv=6' in line


@pytest.mark.parametrize(("host", "client"), [(POD4, OUT4), (POD6, OUT6)])
def test_inbound_keeps_the_clients_address(captured: CapturedPod, host: str, client: str) -> None:
    assert captured.carry(captured.out, captured.pod, host)[0] == client
    line = captured.proxy.wait_for(r"\taccess\t(.*)")[1]
    assert 'direction="inbound" bytes_sent=6 bytes_recv=8' in line


def test_the_applications_own_business_is_not_carried(captured: CapturedPod) -> None:
    for host in ("127.0.0.1", POD4, POD6):
        captured.carry(captured.pod, captured.pod, host)
    captured.carry(captured.pod, captured.out, OUT4)
    captured.proxy.wait_for(r"\taccess\t")
    assert captured.carried() == 1


def test_a_closed_port_of_the_pod_is_refused_at_once(captured: CapturedPod) -> None:
    assert is_reset(captured.out, POD4, 9)
    captured.proxy.wait_for(r"dial to 10.99.0.1:9 for 10.99.0.2:\d+ failed: Connection refused")


def test_an_application_that_dials_the_proxy_is_refused(captured: CapturedPod) -> None:
    assert is_reset(captured.pod, POD4, 15001)
    captured.proxy.wait_for("refused: no-original-destination")
