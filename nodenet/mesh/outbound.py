"""Where an outbound connection goes: rows Z1 to Z10, in order.

Source: ztunnel: src/proxy/outbound.rs. What follows from the order: traffic addressed to a service
never uses a workload's waypoint, a source's own waypoint is never asked, a destination that nobody
knows is passed through, and a known service without endpoints is refused.

Nothing here waits or does I/O. Of a workload that is known by its hostname only a `Route` with
`Route.resolve` comes out, and the caller asks the DNS.
"""

from __future__ import annotations

from random import Random
from typing import Final

from nodenet.abi import HBONE_PORT, INBOUND_PORT, OUTBOUND_PORT
from nodenet.endpoint import IPAddress
from nodenet.mesh import gateways, upstream
from nodenet.mesh.load_balancing import Resolution, choose_waypoint
from nodenet.mesh.model import Endpoint, Mode, Service, Workload
from nodenet.mesh.refused import (
    NoHealthyUpstream,
    NoService,
    NoValidDestination,
    Refused,
    SelfCall,
    UnknownSourceWorkload,
)
from nodenet.mesh.route import InnerTunnel, Protocol, Resolve, Route
from nodenet.mesh.state import MeshState
from nodenet.mesh.trace import UNWATCHED, Trace
from nodenet.mesh.upstream import Upstream

__all__ = ["PROXY_PORTS", "Protocol", "Refused", "Route", "decide", "find_source"]

#: Ports of the proxy's listeners (``illegal_ports``); with SOCKS5 on, 15080 as well.
PROXY_PORTS: Final = frozenset({OUTBOUND_PORT, INBOUND_PORT, HBONE_PORT})


def find_source(state: MeshState, *, namespace: str, name: str, service_account: str) -> Workload:
    """The workload of the pod that connects (row Z2); UnknownSourceWorkload when nobody knows it.

    A pod may be enrolled before the control plane tells of it: the caller subscribes to the state
    and asks again, for up to five seconds.
    """
    found = state.workload_named(namespace, name, service_account)
    if found is None:
        raise UnknownSourceWorkload(namespace=namespace, name=name, service_account=service_account)
    return found


def decide(
    state: MeshState,
    source: Workload,
    client: IPAddress,
    destination: Endpoint,
    *,
    network: str,
    rng: Random,
    proxy_ports: frozenset[int] = PROXY_PORTS,
    trace: Trace | None = None,
) -> Route:
    """The route of a connection from a workload; `Refused` when there is none.

    ``client`` is the address the application connects from, ``destination`` where it wanted to go,
    neither of them v4-mapped. ``network`` is this cluster's (`NETWORK`): it tells what was
    addressed (Z3), the workload's own network tells who answers (Z5). ``trace`` takes notes.
    """
    notes = UNWATCHED if trace is None else trace

    if destination.port in proxy_ports and destination.ip.is_loopback:
        raise SelfCall
    notes.source(source, destination)

    # Z3: a workload before a service, while Z5 takes a service before a workload
    addressed = state.address(network, destination.ip, source.namespace)
    notes.addressed(addressed, destination, network)
    service = addressed if isinstance(addressed, Service) else None

    # Z4
    reference = choose_waypoint(service, rng) if service is not None else None
    notes.service_waypoint(service, reference)
    if service is not None and reference is not None:
        waypoint = gateways.waypoint(state, source, reference, destination, rng, "Z4")
        notes.upstream("Z4", waypoint, reference.hbone_mtls_port)
        if waypoint.workload.network != source.network:
            return _through_gateway(
                state, source, waypoint, service, destination, network, rng, "Z4a"
            )
        return _to_waypoint(waypoint, service, destination, "Z4b")

    # Z5
    answering = upstream.answering(state, source.network, destination, source.namespace)
    if isinstance(answering, Service) and answering.mode is Mode.PASSTHROUGH:
        return Route(protocol=Protocol.TCP, next_hop=destination, row="Z5a")
    port = destination.port
    found = upstream.choose(state, answering, source, port, destination, Resolution.STANDARD, rng)
    notes.upstream("Z5", found, port)
    if found is None:
        if service is not None and service.mode is not Mode.PASSTHROUGH:
            raise NoHealthyUpstream(destination)
        return Route(protocol=Protocol.TCP, next_hop=destination, row="Z5c")

    # Z6
    workload = found.workload
    if workload.network != source.network:
        if service is None:
            raise NoService(destination)
        return _through_gateway(state, source, found, service, destination, network, rng, "Z6")
    notes.same_network(workload)

    # Z7, Z8
    own_waypoint = workload.waypoint
    from_waypoint = (
        own_waypoint is not None
        and service is None
        and gateways.is_from(state, own_waypoint, source, client)
    )
    notes.workload_waypoint(service, workload, from_waypoint)
    if own_waypoint is not None and service is None and not from_waypoint:
        waypoint = gateways.waypoint(state, source, own_waypoint, destination, rng, "Z8")
        notes.upstream("Z8", waypoint, own_waypoint.hbone_mtls_port)
        return _to_waypoint(waypoint, found.service, destination, "Z8")

    return _direct(found)


def _direct(found: Upstream) -> Route:
    """Rows Z9 and Z10: to the workload itself."""
    workload = found.workload
    if not workload.is_hbone:
        next_hop, resolve = _locate(found, found.port, None, "Z10")
        return Route(
            protocol=Protocol.TCP,
            next_hop=next_hop,
            row="Z10",
            service=found.service,
            workload=workload,
            resolve=resolve,
        )
    next_hop, resolve = _locate(found, HBONE_PORT, found.port, "Z9")
    return Route(
        protocol=Protocol.HBONE,
        next_hop=next_hop,
        row="Z9",
        authority="" if next_hop is None else str(Endpoint(next_hop.ip, found.port)),
        identities=found.identities,
        service=found.service,
        workload=workload,
        resolve=resolve,
    )


def _to_waypoint(
    waypoint: Upstream, service: Service | None, destination: Endpoint, row: str
) -> Route:
    """Rows Z4b and Z8: the waypoint is told where the connection wanted to go."""
    next_hop, resolve = _locate(waypoint, waypoint.port, None, row)
    return Route(
        protocol=Protocol.HBONE,
        next_hop=next_hop,
        row=row,
        authority=str(destination),
        identities=waypoint.identities,
        service=service,
        workload=waypoint.workload,
        resolve=resolve,
    )


def _through_gateway(
    state: MeshState,
    source: Workload,
    target: Upstream,
    service: Service,
    destination: Endpoint,
    network: str,
    rng: Random,
    row: str,
) -> Route:
    """Rows Z4a and Z6: in double HBONE through the gateway of the target's network.

    The far side finds an endpoint, or a waypoint, by the service's name.
    """
    reference = target.workload.network_gateway
    if reference is None:
        raise NoValidDestination(target.workload, row)
    gateway = gateways.network_gateway(state, source, reference, destination, rng, row)
    next_hop, resolve = _locate(gateway, gateway.port, None, row)
    return Route(
        protocol=Protocol.DOUBLE_HBONE,
        next_hop=next_hop,
        row=row,
        authority=f"{service.hostname}:{destination.port}",
        identities=gateway.identities,
        inner=InnerTunnel(identities=target.service_identities, network=network),
        service=service,
        workload=gateway.workload,
        resolve=resolve,
    )


def _locate(
    found: Upstream, port: int, authority_port: int | None, row: str
) -> tuple[Endpoint | None, Resolve | None]:
    """What to dial, or how to find that out."""
    ip = found.address(row)
    if ip is not None:
        return Endpoint(ip, port), None
    return None, Resolve(
        hostname=found.workload.hostname,
        uid=found.workload.uid,
        prefer_ipv6=found.towards.ip.version == 6,
        port=port,
        authority_port=authority_port,
    )
