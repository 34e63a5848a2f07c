"""The places of the relay benchmark: two pods that are captured, two that are not, certificates.

Each pair is joined by a veth pair of its own and has the same addresses: the client's pod .1, the
server's pod .2. Everything has a random name and is gone when the block ends, whatever happened.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodenet.capture.session import Capture, remove_instance
from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.csr import make_csr
from nodenet.identity.keys import PrivateKey
from nodenet.identity.spiffe import Identity
from nodenet.kernel.cgroups import Cgroup
from nodenet.lab.cgroups import remove_tree
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

SERVER_PORT: Final = 8080
_LIFE_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Pods:
    """Where a client and a server are."""

    client: Namespace
    server: Namespace

    @property
    def client_ip(self) -> str:
        """The client's address."""
        return str(self.client.ip4)

    @property
    def server_ip(self) -> str:
        """The server's address."""
        return str(self.server.ip4)

    @property
    def target(self) -> str:
        """Where the server listens, ADDRESS:PORT."""
        return f"{self.server_ip}:{SERVER_PORT}"


@dataclass(frozen=True, slots=True)
class RelayWorld:
    """Both pairs, and what the proxies of both kinds need."""

    captured: Pods
    plain: Pods
    instance: Instance
    capture: Capture
    directory: Path
    """For the proxies' files; only root can read it."""
    cgroup: Cgroup
    """Where HAProxy is: as deep as ztunnel's, because a switch between processes of different
    cgroups costs more than one within a cgroup."""

    @property
    def ca(self) -> Path:
        """The CA's directory, of the proxies of both kinds."""
        return self.directory / "ca"

    def certificate(self, name: str) -> tuple[Path, Path]:
        """A key with its certificate, as ztunnel makes them, and the roots: two PEM files."""
        ca = EmbeddedCa(self.ca)
        key, identity = PrivateKey.generate(), Identity("cluster.local", "bench", name)
        # this one lives for the run, so that nothing is renewed in it
        chain = ca.sign_now(make_csr(key, identity), identity, _LIFE_SECONDS)
        pem = key.pem().decode() + chain.leaf.pem + "".join(c.pem for c in chain.intermediates)
        own, roots = self.directory / f"{name}.pem", self.directory / "roots.pem"
        own.write_text(pem)
        roots.write_text("".join(c.pem for c in chain.roots))
        return own, roots

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator[RelayWorld]:
        """Makes it; removes it and what was captured in it."""
        ident = secrets.token_hex(3)
        instance = Instance(f"bench-{ident}")
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="nodenet-bench-"))
            topology = stack.enter_context(Topology())
            stack.callback(remove_instance, instance)
            cgroup = Cgroup.create(Path(f"bench-{ident}", "haproxy"))
            stack.callback(remove_tree, cgroup.path.parent)
            captured = Pods(*topology.pair("a", "b"))
            plain = Pods(*topology.pair("c", "d"))
            capture = stack.enter_context(Capture.open_or_load(instance))
            yield cls(captured, plain, instance, capture, Path(directory), cgroup)
