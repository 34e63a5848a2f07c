"""The two pairs of proxies: ztunnel for the captured pods, HAProxy for the others.

HAProxy does what ztunnel does to the bytes and nothing else: TCP in, mutual TLS 1.3 with P-256
certificates of the same CA between the pods, TCP out; one thread, no log. All else is as it comes,
so it resumes TLS sessions, where ztunnel has one connection for many streams.
"""

from __future__ import annotations

import contextlib
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bench._machine import as_installed
from bench._process import Process
from bench._relay_world import Pods, RelayWorld
from nodenet.abi import HBONE_PORT, OUTBOUND_PORT
from nodenet.capture.session import agent_cgroup_path
from nodenet.errors import NodenetError, NotSupported
from nodenet.kernel.cgroups import Cgroup

#: Where an application would have to be told to go, were it not captured.
HAPROXY_PORT: Final = OUTBOUND_PORT
#: Descriptors of a HAProxy that are no connection's, generously.
_OTHER_FILES: Final = 100
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.01
_NODES: Final = ("client", "server")


class ProxyFailed(NodenetError):
    """A proxy did not start, or ended by itself."""


@dataclass(frozen=True, slots=True)
class ProxyPair:
    """Two running proxies: the client's and the server's."""

    outbound: Process
    inbound: Process

    def move(self, outbound: int, inbound: int) -> None:
        """Pins each to a CPU."""
        self.outbound.move(outbound)
        self.inbound.move(inbound)

    def cpu_ns(self) -> tuple[int, int]:
        """CPU so far: outbound, inbound."""
        return self.outbound.cpu_ns(), self.inbound.cpu_ns()

    def rss_bytes(self) -> tuple[int, int]:
        """Memory: outbound, inbound."""
        return self.outbound.rss_bytes(), self.inbound.rss_bytes()


@contextlib.contextmanager
def ztunnel_pair(world: RelayWorld) -> Iterator[ProxyPair]:
    """Two ztunnels serve the captured pods, HBONE between them, for the length of the block.

    As users run them: access log on, to a file.
    """
    mesh = world.directory / "mesh.yaml"
    mesh.write_text(yaml.safe_dump(mesh_of(world.captured)))
    with contextlib.ExitStack() as stack:
        pids = []
        for node in _NODES:
            argv = [sys.executable, "-m", "nodenet.agents.ztunnel", "run", "--node", node]
            argv += ["--id", str(world.instance.id), "--drain", "0"]
            argv += ["--cgroup", str(agent_cgroup_path(world.instance))]
            argv += ["--mesh", str(mesh), "--embedded-ca", str(world.ca)]
            process, log = stack.enter_context(_running(argv, world.directory / f"ztunnel-{node}"))
            _await(process, log, lambda log=log: re.search(r"(?m)^READY ", log.read_text()))
            pids.append(process.pid)
        pods = world.captured.client, world.captured.server
        for node, pod in zip(_NODES, pods, strict=True):
            result = world.capture.enroll(
                pod.path, name=f"bench/{node}", node=node, wait=_START_SECONDS
            )
            stack.callback(world.capture.unenroll, result.record.netns_cookie)
        yield ProxyPair(*map(Process, pids))


@contextlib.contextmanager
def haproxy_pair(world: RelayWorld) -> Iterator[ProxyPair]:
    """Two HAProxys in the other pods for the length of the block. NotSupported without haproxy."""
    program = shutil.which("haproxy")
    if program is None:
        raise NotSupported("bench relay", "haproxy to compare with", hint="apt install haproxy")
    pods, directory = world.plain, world.directory
    client_pem, roots = world.certificate("client")
    server_pem, _ = world.certificate("server")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = (files - _OTHER_FILES) // 2
    next_hop = f"{pods.server_ip}:{HBONE_PORT}"
    sides = (
        (pods.server, f"{next_hop}{_tls(server_pem, roots)}", pods.target),
        (
            pods.client,
            f"{pods.client_ip}:{HAPROXY_PORT}",
            f"{next_hop}{_tls(client_pem, roots)}",
        ),
    )
    with contextlib.ExitStack() as stack:
        pids = []
        for pod, listen, target in sides:
            name = f"haproxy-{pod.name}"
            told, asked = directory / f"{name}.cfg", directory / f"{name}.sock"
            told.write_text(haproxy_config(listen, target, asked, most))
            # a child is born in the namespace of the thread that forks
            with pod.entered():
                argv = [*_in_cgroup(world.cgroup), program, "-db", "-f", str(told)]
                process, log = stack.enter_context(_running(argv, directory / name))
            _await(process, log, lambda asked=asked: _answers(asked))
            pids.append(process.pid)
        inbound, outbound = pids
        yield ProxyPair(Process(outbound), Process(inbound))


def haproxy_config(listen: str, target: str, admin: Path, most: int) -> str:
    """One side: passes what comes to ``listen`` on to ``target``; either may go on with TLS.

    ``most`` connections at a time; HAProxy refuses to start with more than there are files for.
    """
    return f"""\
global
    nbthread 1
    maxconn {most}
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-server-options ssl-min-ver TLSv1.3
    stats socket {admin} mode 600
defaults
    mode tcp
    timeout connect 10s
    timeout client 1h
    timeout server 1h
listen relay
    bind {listen}
    server next {target}
"""


def mesh_of(pods: Pods) -> dict[str, list[dict[str, Any]]]:
    """The static mesh of two pods that want HBONE between them."""
    workloads = [
        {
            "uid": f"bench//Pod/bench/{node}",
            "name": node,
            "namespace": "bench",
            "serviceAccount": node,
            "workloadName": node,
            "canonicalName": node,
            "canonicalRevision": "v1",
            "node": node,
            "workloadIps": [ip],
            "protocol": "HBONE",
        }
        for node, ip in zip(_NODES, (pods.client_ip, pods.server_ip), strict=True)
    ]
    return {"workloads": workloads, "services": [], "policies": []}


def _tls(own: Path, roots: Path) -> str:
    return f" ssl crt {own} ca-file {roots} verify required"


def _in_cgroup(cgroup: Cgroup) -> list[str]:
    """What a command begins with that runs there from its first socket on."""
    return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(cgroup.path / "cgroup.procs")]


@contextlib.contextmanager
def _running(argv: Sequence[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A child that writes to a file, until the block ends."""
    with (
        log.open("wb") as out,
        subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=as_installed()
        ) as process,
    ):
        try:
            yield process, log
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _await(process: subprocess.Popen[bytes], log: Path, ready: Any) -> None:
    end = time.monotonic() + _START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            said = " | ".join(log.read_text(errors="replace").strip().splitlines()[-5:])
            raise ProxyFailed(f"{log.name} did not start: {said or 'no output'}")
        time.sleep(_POLL_SECONDS)


def _answers(path: Path) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
    return True
