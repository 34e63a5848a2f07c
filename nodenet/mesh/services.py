"""The services of the mesh and their endpoints: found by key, hostname, address and range.

Source of the rules: ztunnel: src/state/service.rs. Two differences, both towards losing nothing:
unhealthy endpoints are kept beside the healthy ones, so a service that begins to allow them has
them; and the endpoints of a removed service are staged again, because a control plane does not
send their workloads anew when the service comes back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from nodenet.mesh.candidates import Candidates
from nodenet.mesh.cidrs import CidrIndex
from nodenet.mesh.index import Index, NetworkIndex
from nodenet.mesh.model import (
    HealthPolicy,
    Locality,
    Placement,
    Ports,
    Service,
    ServiceEndpoint,
    Status,
    Workload,
)
from nodenet.mesh.recent import Recent

#: Decoded services kept, and as many of the generation before. About 1 KiB each.
SERVICES_CACHED: Final = 2048
#: Distinct port maps of endpoints that are shared; a deployment's pods have one.
_PORT_MAPS_SHARED: Final = 4096
#: Distinct placements that are shared: about one for each node of the mesh.
_PLACEMENTS_SHARED: Final = 16384

#: Endpoints in the lists of candidates kept, and as many of the generation before: 8 bytes each,
#: some 40 where capacities differ.
CANDIDATES_CACHED: Final = 262_144

#: What a batch does to the endpoints of a service, by uid; None removes.
EndpointChanges = dict[str, ServiceEndpoint | None]


@lru_cache(_PORT_MAPS_SHARED)
def _shared_ports(ports: Ports) -> Ports:
    return ports


@lru_cache(_PLACEMENTS_SHARED)
def placement(network: str, cluster_id: str, node: str, locality: Locality) -> Placement:
    """The one object of a placement."""
    return Placement(network, cluster_id, node, locality)


def endpoint_of(workload: Workload, ports: Ports) -> ServiceEndpoint:
    """The workload as an endpoint that maps these ports."""
    return ServiceEndpoint(
        workload.uid,
        _shared_ports(ports),
        workload.status,
        workload.capacity,
        placement(workload.network, workload.cluster_id, workload.node, workload.locality),
        bool(workload.addresses or workload.hostname),
        workload.network_gateway is not None,
        workload.application_tunnel is not None,
    )


def may_serve(service: Service, endpoint: ServiceEndpoint) -> bool:
    """Whether the service's health policy lets the endpoint have connections."""
    return endpoint.status is Status.HEALTHY or service.health_policy is HealthPolicy.ALLOW_ALL


class _Entry:
    """A service as it is kept. ``revision`` changes with it and with each of its endpoints."""

    __slots__ = ("encoded", "endpoints", "revision")

    def __init__(self, encoded: bytes, endpoints: dict[str, ServiceEndpoint], revision: int):
        self.encoded = encoded
        self.endpoints = endpoints
        self.revision = revision


class Services:
    """All services with their endpoints, and endpoints that wait for their service."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._staged: dict[str, dict[str, ServiceEndpoint]] = {}
        self._decode = msgspec.msgpack.Decoder(Service).decode
        self._decoded: Recent[str, Service] = Recent(SERVICES_CACHED)
        #: what `nodenet.mesh.load_balancing` has worked out, with the revision it holds for
        self.candidates: Recent[Hashable, tuple[int, Candidates]] = Recent(
            CANDIDATES_CACHED, weigh=lambda kept: 1 + len(kept[1].endpoints)
        )
        self._by_hostname: Index[str] = Index()
        self._by_vip = NetworkIndex()
        self._by_cidr = CidrIndex()
        self._revision = 0

    def get(self, key: str) -> Service | None:
        """By ``namespace/hostname``."""
        found = self._decoded.get(key)
        if found is None:
            entry = self._entries.get(key)
            if entry is None:
                return None
            found = self._decode(entry.encoded)
            self._decoded.put(key, found)
        return found

    def encoded(self, key: str) -> bytes | None:
        """As it is kept; equal bytes are equal services."""
        entry = self._entries.get(key)
        return None if entry is None else entry.encoded

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Service]:
        """All of them of this moment in the order of insertion, past the cache."""
        return (self._decode(entry.encoded) for entry in list(self._entries.values()))

    def by_hostname(self, hostname: str) -> list[Service]:
        """Every service with that hostname, oldest first, whoever may see it."""
        return self._all(self._by_hostname.get(hostname))

    def best_by_hostname(self, hostname: str, namespace: str | None) -> Service | None:
        """The one that clients of the namespace mean: their own, the canonical, the oldest."""
        return _best(self.by_hostname(hostname), namespace)

    def best_by_vip(self, network: str, address: bytes, namespace: str | None) -> Service | None:
        """The one that clients of the namespace reach at the address (packed).

        An exact address counts before any range. Of several: the client's own namespace, then (of
        ranges) the longest prefix, then the canonical one, then the oldest. ``namespace`` None:
        every service is visible, none is one's own.
        """
        exact = self._by_vip.get(network, address)
        if exact:
            found = _best(self._all(exact), namespace)
            if found is not None:
                return found
        ranges = self._by_cidr.containing(network, address)
        if not ranges:
            return None
        best: Service | None = None
        best_rank: tuple[bool, int, bool] = (False, -1, False)
        for length, key in ranges:
            service = self.get(key)
            if service is None or not service.visible_to(namespace):
                continue
            rank = (service.namespace == namespace, length, service.canonical)
            if rank > best_rank:
                best, best_rank = service, rank
        return best

    def endpoints(self, key: str) -> Mapping[str, ServiceEndpoint]:
        """Every endpoint of the service by uid, unhealthy ones too; see `may_serve`."""
        entry = self._entries.get(key)
        return entry.endpoints if entry is not None else {}

    def revision(self, key: str) -> int:
        """A number that is another one after the service or any endpoint of it has changed."""
        entry = self._entries.get(key)
        return entry.revision if entry is not None else 0

    @property
    def staged(self) -> Mapping[str, Mapping[str, ServiceEndpoint]]:
        """Endpoints whose service is not known, by its key and their uid."""
        return self._staged

    def insert(self, service: Service, encoded: bytes) -> None:
        """Adds or replaces a service; its endpoints stay, staged ones join."""
        key = service.key
        entry = self._entries.get(key)
        self._revision += 1
        if entry is None:
            self._entries[key] = _Entry(encoded, self._staged.pop(key, {}), self._revision)
        else:
            # the places in the indexes that stay the same keep their order
            old = self._decode(entry.encoded)
            for vip in set(old.vips).difference(service.vips):
                self._by_vip.discard(vip.network, vip.address, key)
            for cidr in set(old.cidr_vips).difference(service.cidr_vips):
                self._by_cidr.discard(cidr, key)
            entry.encoded = encoded
            entry.revision = self._revision
            self._decoded.discard(key)
        self._by_hostname.add(service.hostname, key)
        for vip in service.vips:
            self._by_vip.within(vip.network).add(vip.address, key)
        for cidr in service.cidr_vips:
            self._by_cidr.add(cidr, key)

    def remove(self, key: str) -> Service | None:
        """Removes and returns it; its endpoints are staged. None when it is not known."""
        service = self.get(key)
        if service is None:
            return None
        entry = self._entries.pop(key)
        self._decoded.discard(key)
        if entry.endpoints:
            self._staged[key] = entry.endpoints
        self._by_hostname.discard(service.hostname, key)
        for vip in service.vips:
            self._by_vip.discard(vip.network, vip.address, key)
        for cidr in service.cidr_vips:
            self._by_cidr.discard(cidr, key)
        return service

    def change_endpoints(self, key: str, changes: EndpointChanges) -> None:
        """Applies all that a batch does to the endpoints of one service, known or not."""
        entry = self._entries.get(key)
        if entry is not None:
            endpoints = entry.endpoints
            self._revision += 1
            entry.revision = self._revision
        else:
            endpoints = self._staged.setdefault(key, {})
        for uid, endpoint in changes.items():
            if endpoint is None:
                endpoints.pop(uid, None)
            else:
                endpoints[uid] = endpoint
        if entry is None and not endpoints:
            del self._staged[key]

    def _all(self, keys: Iterable[str]) -> list[Service]:
        return [service for key in keys if (service := self.get(key)) is not None]


def _best(services: list[Service], namespace: str | None) -> Service | None:
    """Of those visible: of the client's namespace, canonical, first."""
    best: Service | None = None
    best_rank = -1
    for service in services:
        if service.visible_to(namespace):
            rank = 2 * (service.namespace == namespace) + service.canonical
            if rank > best_rank:
                best, best_rank = service, rank
    return best
