"""A pod without a proxy, whose connections pass and are recorded, and a server outside."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import PodRecord
from nodenet.capture.session import Capture
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

NODENET = str(Path(sys.executable).with_name("nodenet"))
PORT = 8080


@dataclass
class Scene:
    """Two namespaces with a link; sockets made here are closed at the end."""

    pod: Namespace
    outside: Namespace
    listener: socket.socket
    stack: contextlib.ExitStack

    def connect(self, host: str = "10.99.0.2", port: int = PORT) -> socket.socket:
        """A socket of the pod, connected."""
        with self.pod.entered():
            return self.stack.enter_context(
                contextlib.closing(socket.create_connection((host, port), timeout=10))
            )

    def pair(self, host: str = "10.99.0.2") -> tuple[socket.socket, socket.socket]:
        """Both ends of one connection, the pod's first."""
        client = self.connect(host)
        server = self.stack.enter_context(contextlib.closing(self.listener.accept()[0]))
        server.settimeout(10)
        return client, server


@pytest.fixture
def scene(topology: Topology) -> Iterator[Scene]:
    """Not enrolled yet."""
    pod, outside = topology.pair()
    with contextlib.ExitStack() as stack:
        with outside.entered():
            listener = stack.enter_context(listening(PORT))
        yield Scene(pod, outside, listener, stack)


@pytest.fixture
def enrol(scene: Scene, capture: Capture) -> Callable[..., PodRecord]:
    """Enrols the pod as t/pod; without a proxy its connections pass."""

    def now(**options: Any) -> PodRecord:
        chosen = EnrolOptions(**{"on_proxy_down": "open", **options})
        return capture.enroll(scene.pod.path, name="t/pod", options=chosen).record

    return now


def listening(port: int) -> contextlib.closing[socket.socket]:
    """A listener on both families."""
    return contextlib.closing(
        socket.create_server(
            ("::", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True
        )
    )


@pytest.fixture
def nodenet(instance: Instance) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command on this instance."""

    def run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [NODENET, "--id", instance.id or "", *words],
            capture_output=True, text=True, check=check, timeout=60,
        )  # fmt: skip

    return run


@pytest.fixture
def answer(nodenet: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Any]:
    """Runs a command with -j and reads its document strictly as the type it is made of."""

    def run(shape: Any, *words: str) -> Any:
        text = nodenet(*words, "-j").stdout
        keys = msgspec.json.decode(text)
        found = msgspec.json.decode(text, type=shape)
        # nothing is printed that the type, and so the published schema, does not have
        assert msgspec.json.decode(msgspec.json.encode(found)) == keys
        return found

    return run
