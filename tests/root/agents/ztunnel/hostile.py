"""A mesh with a stranger beside it, and the proof that nobody else notices the stranger."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.asked import metric
from tests.root.agents.ztunnel.h2_peer import H2Peer
from tests.root.agents.ztunnel.meshed import B4, Meshed
from tests.root.agents.ztunnel.peers import ID_A, client, read, tls
from tests.root.agents.ztunnel.proxied import DEADLINE

STRANGER4 = "10.97.0.1"
#: What a fault may cost a proxy that has been through the same fault before.
MEMORY_KIB = 24 * 1024


class Steady:
    """A connection from a to b that is used all the time. A context manager; fails if it broke."""

    def __init__(self, world: Meshed) -> None:
        self._world = world
        self.trips = 0
        self._over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._pair = self._stack.enter_context(self._world.pair())
        self._thread.start()
        self.goes_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if kind is None:
            self.goes_on()
        self._over = True
        self._thread.join(DEADLINE)
        self._stack.close()
        assert self._error is None or kind is not None, repr(self._error)

    def goes_on(self, trips: int = 3) -> None:
        """Until so many more round trips are made."""
        wanted, end = self.trips + trips, time.monotonic() + DEADLINE
        while self.trips < wanted:
            assert self._error is None, repr(self._error)
            assert time.monotonic() < end, "the connection stands still"
            time.sleep(0.002)

    def _run(self) -> None:
        near, far = self._pair
        try:
            while not self._over:
                for one, other in ((near, far), (far, near)):
                    one.sendall(b"ping")
                    assert read(other, 4) == b"ping"
                self.trips += 1
                time.sleep(0.001)
        except (OSError, AssertionError) as error:
            self._error = error


class Strange:
    """Two pods in a mesh and a third namespace that reaches the second pod directly."""

    def __init__(self, capture: Capture, topology: Topology, directory: Path) -> None:
        self.mesh = Meshed(capture, topology, directory)
        b, self.stranger = self.mesh.b, topology.namespace("c")
        with self.stranger.netlink() as link:
            link.veth("eth0", b, "eth1")
            link.address("eth0", f"{STRANGER4}/24")
            link.up("eth0")
        with b.netlink() as link:
            link.address("eth1", "10.97.0.2/24")
        with self.stranger.netlink() as link:
            link.route("10.99.0.0/24", dev="eth0", via="10.97.0.2")
        self.ca = directory / "ca"

    @contextlib.contextmanager
    def raw(self) -> Iterator[socket.socket]:
        """A TCP connection to 15008 of b."""
        with self.mesh.connect(self.stranger, B4, 15008) as sock:
            yield sock

    @contextlib.contextmanager
    def client(self, identity: str = ID_A) -> Iterator[H2Peer]:
        """An HBONE connection to b that says it is somebody."""
        with client(self.stranger, B4, tls(self.ca, identity, server=False)) as peer:
            yield peer

    def metric(self, node: str, name: str, **labels: str) -> float:
        """See `asked.metric`, of a node's proxy."""
        return metric(self.mesh.proxies[node], name, **labels)

    def wait(self, condition: Callable[[], object], seconds: float = DEADLINE) -> None:
        """Until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.02)
