"""The namespaces of a benchmark, and the ways a pod in them can be captured.

One pod and one namespace outside, joined by a veth pair. Everything has a random name and is gone
when the block ends, whatever happened.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodenet.capture.options import EnrolOptions
from nodenet.capture.session import Capture, agent_cgroup_path, remove_instance
from nodenet.kernel.cgroups import Cgroup
from nodenet.lab.cgroups import remove_tree
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

POD_NAME: Final = "bench/pod"


@dataclass(frozen=True, slots=True)
class World:
    """The places; ``ebpf`` and ``iptables`` are the instances that capture the pod in turn."""

    pod: Namespace
    outside: Namespace
    ebpf: Instance
    iptables: Instance
    topology: Topology
    server_cgroup: Path
    """Where a server is that nobody takes for the proxy. As deep as the agent's cgroup: a switch
    between processes of different cgroups costs more than one within a cgroup."""

    @property
    def pod_ip(self) -> str:
        """The pod's own address."""
        return str(self.pod.ip4)

    @property
    def outside_ip(self) -> str:
        """The address outside."""
        return str(self.outside.ip4)

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator[World]:
        """Makes it; removes it and what was captured in it."""
        ident = secrets.token_hex(3)
        with contextlib.ExitStack() as stack:
            topology = stack.enter_context(Topology())
            instances = Instance(f"bench-{ident}"), Instance(f"bench-{ident}-ipt")
            for instance in instances:
                stack.callback(remove_instance, instance)
            cgroup = Cgroup.create(Path(f"bench-{ident}", "server"))
            stack.callback(remove_tree, cgroup.path.parent)
            pod, outside = topology.pair("pod", "out")
            yield cls(pod, outside, *instances, topology, cgroup.path)


@dataclass(frozen=True, slots=True)
class Standing:
    """How the pod is captured at the moment."""

    captured: bool
    agent_cgroup: Path | None = None
    """Where a stand-in for the proxy must be to be taken for it; None where nobody asks."""
    instance: Instance | None = None
    """Whose pods a proxy has to serve."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to capture, by the name it has in the tables."""

    name: str
    standing: Callable[[World], AbstractContextManager[Standing]]


@contextlib.contextmanager
def _none(_world: World) -> Iterator[Standing]:
    yield Standing(captured=False)


@contextlib.contextmanager
def loaded(world: World) -> Iterator[Capture]:
    """The programs are attached; gone after the block."""
    with Capture.open_or_load(world.ebpf) as capture:
        try:
            yield capture
        finally:
            capture.remove_all()


@contextlib.contextmanager
def _attached(world: World) -> Iterator[Standing]:
    with loaded(world):
        yield Standing(captured=False)


@contextlib.contextmanager
def _ebpf(world: World) -> Iterator[Standing]:
    with loaded(world) as capture:
        capture.enroll(world.pod.path, name=POD_NAME)
        yield Standing(
            captured=True,
            agent_cgroup=agent_cgroup_path(world.ebpf),
            instance=world.ebpf,
        )


@contextlib.contextmanager
def _iptables(world: World) -> Iterator[Standing]:
    capture = Capture.without_bpf(world.iptables)
    options = EnrolOptions(backend="iptables")
    result = capture.enroll(world.pod.path, name=POD_NAME, options=options)
    try:
        yield Standing(captured=True, instance=world.iptables)
    finally:
        capture.unenroll(result.record.netns_cookie)


NONE: Final = Variant("none", _none)
ATTACHED: Final = Variant("attached", _attached)
EBPF: Final = Variant("ebpf", _ebpf)
IPTABLES: Final = Variant("iptables", _iptables)
