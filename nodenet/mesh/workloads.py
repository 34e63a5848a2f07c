"""The workloads of the mesh: kept encoded, found by uid, address, name and hostname.

Source of the rules: ztunnel: src/state/workload.rs. Within one process nobody else writes, so a
change needs no lock; `nodenet.mesh.state` makes a whole batch of them visible at once.
"""

from __future__ import annotations

from bisect import insort_right
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from nodenet.mesh.index import Index, NetworkIndex
from nodenet.mesh.model import NetworkMode, Workload
from nodenet.mesh.recent import Recent

#: Decoded workloads kept, and as many of the generation before: those that connections of this
#: node go to and come from. 1 to 2 KiB each.
WORKLOADS_CACHED: Final = 2048

_POD: Final = "//Pod/"


class Workloads:
    """All workloads, with their indexes. ``node`` is this node's name, "" when it has none."""

    def __init__(self, node: str = "") -> None:
        self.node = node
        self._encoded: dict[str, bytes] = {}
        self._decode = msgspec.msgpack.Decoder(Workload).decode
        self._decoded: Recent[str, Workload] = Recent(WORKLOADS_CACHED)
        self._by_address = NetworkIndex()
        self._by_name: Index[str] = Index()
        self._by_hostname: Index[tuple[str, str]] = Index()
        #: workloads of this node that have the identity
        self._local: Counter[str] = Counter()

    def get(self, uid: str) -> Workload | None:
        """By key."""
        found = self._decoded.get(uid)
        if found is None:
            encoded = self._encoded.get(uid)
            if encoded is None:
                return None
            found = self._decode(encoded)
            self._decoded.put(uid, found)
        return found

    def encoded(self, uid: str) -> bytes | None:
        """As it is kept; equal bytes are equal workloads."""
        return self._encoded.get(uid)

    def __contains__(self, uid: str) -> bool:
        return uid in self._encoded

    def __len__(self) -> int:
        return len(self._encoded)

    def __iter__(self) -> Iterator[Workload]:
        """All of them in the order of insertion, past the cache: for dumps, not for connections.

        Those of the moment it is asked: a dump is written in steps, and batches come in between.
        """
        return map(self._decode, list(self._encoded.values()))

    def by_address(self, network: str, address: bytes) -> Workload | None:
        """The workload that owns the address (packed). Host-network workloads are never found.

        Of several the one preferred is: a pod in HBONE, a pod, one in HBONE, any; then the newest.
        """
        uid = self._by_address.last(network, address)
        return None if uid is None else self.get(uid)

    def by_name(self, namespace: str, name: str, service_account: str) -> Workload | None:
        """The workload that the node's agent named; of several one of this node, then the newest.

        Clusters of a mesh may have equal names in equal namespaces.
        """
        best: Workload | None = None
        for uid in self._by_name.get(f"{namespace}/{name}"):
            found = self.get(uid)
            if found is None or found.service_account != service_account:
                continue
            if best is None or best.node != self.node or found.node == self.node:
                best = found
        return best

    def by_hostname(self, namespace: str, hostname: str) -> Workload | None:
        """The workload with that hostname; for waypoints that have no service."""
        uid = self._by_hostname.last((namespace, hostname))
        return None if uid is None else self.get(uid)

    def has_local_identity(self, identity: str) -> bool:
        """Whether a workload of this node has the SPIFFE id."""
        return identity in self._local

    def insert(self, workload: Workload, encoded: bytes) -> None:
        """Adds a workload whose uid is not known; `remove` comes first otherwise."""
        uid = workload.uid
        self._encoded[uid] = encoded
        if workload.network_mode is not NetworkMode.HOST_NETWORK:
            for address in workload.addresses:
                self._claim(workload, address)
        self._by_name.add(f"{workload.namespace}/{workload.name}", uid)
        if workload.hostname:
            self._by_hostname.add((workload.namespace, workload.hostname), uid)
        if self.is_local(workload):
            self._local[workload.identity] += 1

    def remove(self, uid: str) -> Workload | None:
        """Removes and returns it; None when it is not known."""
        workload = self.get(uid)
        if workload is None:
            return None
        del self._encoded[uid]
        self._decoded.discard(uid)
        for address in workload.addresses:
            self._by_address.discard(workload.network, address, uid)
        self._by_name.discard(f"{workload.namespace}/{workload.name}", uid)
        if workload.hostname:
            self._by_hostname.discard((workload.namespace, workload.hostname), uid)
        if self.is_local(workload):
            self._local[workload.identity] -= 1
            if not self._local[workload.identity]:
                del self._local[workload.identity]
        return workload

    def is_local(self, workload: Workload) -> bool:
        """Whether it runs on this node; nothing does when the node has no name."""
        return self.node != "" and workload.node == self.node

    def _preference(self, uid: str) -> int:
        """Who keeps an address that several workloads claim: pods cannot claim one at will."""
        workload = self.get(uid)
        hbone = workload is not None and workload.is_hbone
        return (2 if _POD in uid else 0) + (1 if hbone else 0)

    def _claim(self, workload: Workload, address: bytes) -> None:
        index = self._by_address.within(workload.network)
        others = index.get(address)
        if not others:
            index.put(address, (workload.uid,))
        elif workload.uid not in others:
            # sorted by preference; of equals the newest is last, and the last is the one found
            claims = list(others)
            insort_right(claims, workload.uid, key=self._preference)
            index.put(address, tuple(claims))
