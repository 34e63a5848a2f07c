"""Worlds for the capture's own tests: an instance, a pod with an outside, a listening stand-in."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodenet.capture.session import Capture, agent_cgroup_path, remove_instance
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

#: Accepts on the proxy's ports from inside the agent's cgroup and closes at once.
STAND_IN = """
import os, selectors, socket, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
wait = selectors.DefaultSelector()
for port in (15001, 15006, 15008, 15053):
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", port))
    listener.listen(1024)
    wait.register(listener, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in wait.select():
        key.fileobj.accept()[0].close()
"""


@pytest.fixture
def instance() -> Iterator[Instance]:
    """A random instance; everything of it is removed, also when the test left it broken."""
    chosen = Instance(f"t-{secrets.token_hex(4)}")
    yield chosen
    remove_instance(chosen)


@pytest.fixture
def capture(instance: Instance) -> Iterator[Capture]:
    """The instance, loaded."""
    with Capture.open_or_load(instance) as opened:
        yield opened


@pytest.fixture
def topology() -> Iterator[Topology]:
    """Namespaces of one test."""
    with Topology() as made:
        yield made


@pytest.fixture
def pod(topology: Topology) -> Namespace:
    """A pod (10.99.0.1, fd99::1) joined to an outside (10.99.0.2, fd99::2)."""
    return topology.pair()[0]


@pytest.fixture
def stand_in(instance: Instance) -> Iterator[Callable[[Namespace], subprocess.Popen[bytes]]]:
    """Starts a stand-in for the proxy in a namespace, listening when the call returns."""
    with ExitStack() as stack:

        def start(where: Namespace) -> subprocess.Popen[bytes]:
            group: Path = agent_cgroup_path(instance)
            child = where.popen(
                [sys.executable, "-c", STAND_IN, str(group)], stdout=subprocess.PIPE
            )
            stack.callback(_end, child)
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            return child

        yield start


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
