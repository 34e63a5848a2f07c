"""Where references to waypoints and to gateways of networks lead.

Source: ztunnel: src/state.rs, src/proxy.rs. A reference is an address or a hostname; the hostname
of a service is the usual one, because it follows the family of the client's destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from nodenet.endpoint import IPAddress
from nodenet.mesh import upstream
from nodenet.mesh.load_balancing import Resolution
from nodenet.mesh.model import Endpoint, GatewayAddress, Mode, NetworkAddress, Service, Workload
from nodenet.mesh.refused import UnknownNetworkGateway, UnknownWaypoint
from nodenet.mesh.state import MeshState
from nodenet.mesh.upstream import Upstream


def waypoint(
    state: MeshState,
    source: Workload,
    reference: GatewayAddress,
    destination: Endpoint,
    rng: Random,
    row: str,
) -> Upstream:
    """The waypoint's workload. ``destination`` is the connection's, for the family.

    UnknownWaypoint, by the row that asked, when there is none to be had.
    """
    found = _resolve(state, source, reference, destination, Resolution.WAYPOINT, rng)
    if found is None:
        raise UnknownWaypoint(_name(reference), row)
    return found


def network_gateway(
    state: MeshState,
    source: Workload,
    reference: GatewayAddress,
    destination: Endpoint,
    rng: Random,
    row: str,
) -> Upstream:
    """The gateway's workload; its service must list the port. UnknownNetworkGateway otherwise."""
    found = _resolve(state, source, reference, destination, Resolution.STANDARD, rng)
    if found is None:
        raise UnknownNetworkGateway(_name(reference), row)
    return found


def _resolve(
    state: MeshState,
    source: Workload,
    reference: GatewayAddress,
    destination: Endpoint,
    resolution: Resolution,
    rng: Random,
) -> Upstream | None:
    port = reference.hbone_mtls_port
    named = reference.destination
    found: Service | Workload | None
    if isinstance(named, NetworkAddress):
        # the family is that of the address referred to, whatever the client uses
        destination = Endpoint(named.ip, port)
        found = upstream.answering(state, named.network, destination, source.namespace)
        if isinstance(found, Service) and found.mode is Mode.PASSTHROUGH:
            return None
    else:
        found = state.destination(named)
    return upstream.choose(state, found, source, port, destination, resolution, rng)


def members(state: MeshState, reference: GatewayAddress) -> Iterator[Workload]:
    """Every workload a reference may mean: the one at the address, or a service's endpoints."""
    found = state.destination(reference.destination)
    if isinstance(found, Workload):
        yield found
    elif found is not None:
        for uid in state.endpoints(found):
            workload = state.workload(uid)
            if workload is not None:
                yield workload


def is_from(
    state: MeshState, reference: GatewayAddress, source: Workload, client: IPAddress
) -> bool:
    """Whether the connection comes from the gateway: its identity, from one of its addresses.

    The address is asked for because a waypoint's identity may be that of other pods as well.
    """
    identity = source.identity
    return any(
        member.owns(client) and member.identity == identity for member in members(state, reference)
    )


def _name(reference: GatewayAddress) -> str:
    named = reference.destination
    return str(named) if isinstance(named, NetworkAddress) else named.hostname
