"""Which endpoint of a service gets a connection: filter, rank by locality, weighted chance.

Source: ztunnel: src/state.rs (spec: rows "endpoint filter" to "selection"). There is no
round-robin, no least-request and no outlier detection: what one node knows of the load is too
little, and retries are the application's.

The candidates of a service are the same for every pod of a node that has one placement, so they
are kept until the service or one of its endpoints changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import Enum
from itertools import accumulate
from random import Random
from typing import Final

from nodenet.mesh.candidates import Candidate, Candidates
from nodenet.mesh.model import (
    GatewayAddress,
    Mode,
    Placement,
    Scope,
    Service,
    ServiceEndpoint,
    Workload,
    target_port,
)
from nodenet.mesh.services import Services, may_serve, placement


class Resolution(Enum):
    """What a service is asked for."""

    STANDARD = "standard"
    """A port of it; gateways of networks too."""
    WAYPOINT = "waypoint"
    """Its proxies, which take any port at an application tunnel."""


_NOBODY: Final = Candidates((), None)


def candidates(
    services: Services, service: Service, source: Workload, port: int, resolution: Resolution
) -> Candidates:
    """Endpoints of the service's port that a connection of ``source`` may go to."""
    key = service.key
    here = placement(source.network, source.cluster_id, source.node, source.locality)
    revision = services.revision(key)
    question = (key, here, port, resolution)
    kept = services.candidates.get(question)
    if kept is not None and kept[0] == revision:
        return kept[1]
    found = _candidates(services, service, here, port, resolution)
    services.candidates.put(question, (revision, found))
    return found


def _candidates(
    services: Services, service: Service, here: Placement, port: int, resolution: Resolution
) -> Candidates:
    target = target_port(service.ports, port)
    if target is None and resolution is Resolution.STANDARD:
        return _NOBODY
    usable = (
        endpoint
        for endpoint in services.endpoints(service.key).values()
        if may_serve(service, endpoint)
        and _reachable(endpoint, here)
        and _takes(endpoint, port, target, resolution)
    )
    return _weighted(_preferred(usable, service, here))


def _reachable(endpoint: ServiceEndpoint, here: Placement) -> bool:
    """Without an address there must be a gateway, and gateways lead to other networks only."""
    return endpoint.has_address or (
        endpoint.has_gateway and endpoint.placement.network != here.network
    )


def _takes(
    endpoint: ServiceEndpoint, port: int, target: int | None, resolution: Resolution
) -> bool:
    """Whether the endpoint has the port. ``target`` is the service's: 0 named, None not listed."""
    if resolution is Resolution.WAYPOINT:
        return target is not None or endpoint.has_tunnel
    return target != 0 or target_port(endpoint.ports, port) is not None


def _preferred(
    usable: Iterable[ServiceEndpoint], service: Service, here: Placement
) -> tuple[ServiceEndpoint, ...]:
    """Those of the highest rank."""
    balancing = service.load_balancing
    if balancing is None or balancing.mode not in (Mode.STRICT, Mode.FAILOVER):
        return tuple(usable)
    scopes = balancing.routing_preference
    strict = balancing.mode is Mode.STRICT
    ranks: dict[Placement, int] = {}
    best: list[ServiceEndpoint] = []
    best_rank = 0
    for endpoint in usable:
        there = endpoint.placement
        rank = ranks.get(there)
        if rank is None:
            if strict and not all(_shared(scope, here, there) for scope in scopes):
                rank = -1
            else:
                rank = locality_rank(scopes, here, there)
            ranks[there] = rank
        if rank > best_rank:
            best, best_rank = [endpoint], rank
        elif rank == best_rank:
            best.append(endpoint)
    return tuple(best)


def locality_rank(scopes: tuple[Scope, ...], here: Placement, there: Placement) -> int:
    """How many scopes agree, in their order and up to the first that does not.

    NETWORK in the first place is a preference: it counts more than all others together, and the
    others are looked at even when it does not agree.
    """
    rank = 0
    for place, scope in enumerate(scopes):
        first_network = place == 0 and scope is Scope.NETWORK
        if _shared(scope, here, there):
            rank += len(scopes) if first_network else 1
        elif not first_network:
            break
    return rank


def _shared(scope: Scope, here: Placement, there: Placement) -> bool:
    match scope:
        case Scope.REGION:
            return here.locality.region == there.locality.region
        case Scope.ZONE:
            return here.locality.zone == there.locality.zone
        case Scope.SUBZONE:
            return here.locality.subzone == there.locality.subzone
        case Scope.NODE:
            return here.node == there.node
        case Scope.CLUSTER:
            return here.cluster_id == there.cluster_id
        case Scope.NETWORK:
            return here.network == there.network


def _weighted(endpoints: tuple[ServiceEndpoint, ...]) -> Candidates:
    if all(endpoint.capacity == 1 for endpoint in endpoints):
        return Candidates(endpoints, None)
    return Candidates(endpoints, tuple(accumulate(each.capacity for each in endpoints)))


def choose_waypoint(service: Service, rng: Random) -> GatewayAddress | None:
    """The waypoint of a service: one of the weighted ones, else the only one, else None."""
    weighted = service.weighted_waypoints
    sums = list(accumulate(each.weight for each in weighted))
    if not sums or not sums[-1]:
        return service.waypoint
    return weighted[bisect_right(sums, rng.random() * sums[-1])].destination


def waypoints_listed(service: Service, chosen: GatewayAddress) -> list[Candidate]:
    """What `choose_waypoint` chose from, for those who explain it."""
    total = sum(each.weight for each in service.weighted_waypoints)
    if not total:
        return [Candidate(name=str(chosen.destination), probability=1.0, chosen=True)]
    return [
        Candidate(
            name=str(each.destination.destination),
            probability=each.weight / total,
            chosen=each.destination == chosen,
        )
        for each in service.weighted_waypoints
        if each.weight
    ]
