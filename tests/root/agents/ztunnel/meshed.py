"""Two pods on two nodes, captured, in one mesh: a proxy process for each, HBONE between them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import yaml

from nodenet.capture.options import EnrolOptions
from nodenet.capture.session import Capture, agent_cgroup_path
from nodenet.kernel.cgroups import Cgroup
from nodenet.lab.topology import Namespace, Topology
from tests.root.agents.ztunnel.proxied import DEADLINE, ProxyProcess

A4, B4, A6, B6 = "10.99.0.1", "10.99.0.2", "fd99::1", "fd99::2"
VIP = "10.200.0.1"


def workload(name: str, node: str, *ips: str, **more: object) -> dict[str, object]:
    """A workload of the mesh file, tunnelled, in namespace ``test``."""
    return {
        "uid": f"cluster1//Pod/test/{name}",
        "name": name,
        "namespace": "test",
        "serviceAccount": name,
        "workloadName": name,
        "canonicalName": name,
        "canonicalRevision": "v1",
        "node": node,
        "workloadIps": list(ips),
        "protocol": "HBONE",
    } | more


def deny(name: str, account: str) -> dict[str, object]:
    """A policy of the whole namespace that refuses one service account."""
    principal = f"cluster.local/ns/test/sa/{account}"
    return {
        "name": name,
        "namespace": "test",
        "scope": "Namespace",
        "action": "Deny",
        "rules": [[[{"principals": [{"Exact": principal}]}]]],
    }


class Meshed:
    """The world of one test; made and removed by the fixture."""

    def __init__(self, capture: Capture, topology: Topology, directory: Path) -> None:
        self.capture = capture
        self.directory = directory
        self.a, self.b = topology.pair("a", "b")
        self.mesh_file = directory / "mesh.yaml"
        self.meshes: dict[str, dict[str, list[dict[str, object]]]] = {}
        """What the proxies of some nodes believe instead."""
        self.mesh: dict[str, list[dict[str, object]]] = {
            "workloads": [
                workload("a", "n1", A4, A6),
                workload("b", "n2", B4, B6, services={"test/b.test.svc": {80: 8080}}),
            ],
            "services": [
                {
                    "name": "b",
                    "namespace": "test",
                    "hostname": "b.test.svc",
                    "vips": [f"/{VIP}"],
                    "ports": {80: 8080},
                }
            ],
            "policies": [],
        }
        self.proxies: dict[str, ProxyProcess] = {}

    def write(self) -> None:
        """Puts the mesh into force, or for the proxies to find when they start."""
        for node, mesh in ((None, self.mesh), *self.meshes.items()):
            temporary = self.directory / ".mesh.new"
            temporary.write_text(yaml.safe_dump(mesh))
            os.replace(temporary, self._file_of(node))

    def _file_of(self, node: str | None) -> Path:
        return self.directory / f"{node}.yaml" if node in self.meshes else self.mesh_file

    def start(self, *options: str, nodes: Sequence[str] = ("n1", "n2")) -> Self:
        """Starts the proxies and enrols the pods."""
        self.write()
        cgroup = Cgroup.open(agent_cgroup_path(self.capture.instance))
        for node in nodes:
            log = self.directory / f"proxy-{node}.log"
            self.proxies[node] = ProxyProcess(
                self.capture.instance,
                cgroup,
                log,
                f"--node={node}",
                f"--mesh={self._file_of(node)}",
                f"--embedded-ca={self.directory / 'ca'}",
                *options,
            )
        for proxy in self.proxies.values():
            proxy.ready()
        for pod, node in ((self.a, "n1"), (self.b, "n2")):
            if node in nodes:
                result = self.capture.enroll(
                    pod.path,
                    name=f"test/{'a' if pod is self.a else 'b'}",
                    node=node,
                    options=EnrolOptions(backend="ebpf"),
                    wait=DEADLINE,
                )
                assert set(result.listeners) >= {15001, 15006, 15008}
        return self

    def listen(self, where: Namespace, port: int = 0) -> socket.socket:
        """A listening socket for both families; its timeout is set."""
        with where.entered():
            listener = socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        listener.settimeout(DEADLINE)
        return listener

    def connect(self, where: Namespace, host: str, port: int) -> socket.socket:
        """A connection from a namespace; its timeout is set."""
        with where.entered():
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.settimeout(DEADLINE)
        try:
            sock.connect((host, port))
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.contextmanager
    def pair(self, host: str = B4, port: int = 0) -> Iterator[tuple[socket.socket, socket.socket]]:
        """A connection from a to b: (client, server)."""
        with self.listen(self.b, port) as listener:
            target = port or listener.getsockname()[1]
            with self.connect(self.a, host, target) as client:
                server, _ = listener.accept()
                server.settimeout(DEADLINE)
                with server:
                    yield client, server

    def access(self, node: str, pattern: str = "") -> str:
        """The next line of a node's access log with a pattern; waits for it."""
        return self.proxies[node].wait_for(rf"(?m)^.*\taccess\t.*{pattern}.*$")[0]

    def stop(self) -> None:
        """Ends the proxies; fails when one of them has logged a fault."""
        for proxy in self.proxies.values():
            proxy.stop()
        for node, proxy in self.proxies.items():
            fault = re.search(
                r"(?s)(Traceback|Exception ignored|\bbug:|never awaited).*", proxy.text()
            )
            assert fault is None, f"in the log of the proxy of {node}: {fault[0]}"
