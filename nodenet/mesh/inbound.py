"""Whether a tunnel that arrives may be opened, and to which port of the pod it leads.

A peer asks by CONNECT for an address or a service's hostname; whatever it asks for, the connection
is made to the pod it came to, so a peer cannot reach anything through the proxy. Who the peer is
does not matter here, that is for the policies (`nodenet.mesh.rbac`), which are asked with
`InboundRoute.destination`. Pure; the order is that of the steps of one request. Source: ztunnel:
src/proxy/inbound.rs.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nodenet.endpoint import IPAddress
from nodenet.errors import NodenetError
from nodenet.mesh.authority import Authority, HostPort, parse_authority
from nodenet.mesh.model import (
    ApplicationTunnel,
    Endpoint,
    GatewayAddress,
    NetworkAddress,
    Service,
    TunnelKind,
    Workload,
    target_port,
)
from nodenet.mesh.outbound import PROXY_PORTS
from nodenet.mesh.state import MeshState

BAD_REQUEST: Final = 400
UNAVAILABLE: Final = 503

#: What is quoted of an authority that could not be read; a peer may send 64 KiB.
_QUOTED_MAX: Final = 256

_LOOPBACK: Final[dict[int, IPAddress]] = {
    4: ipaddress.IPv4Address("127.0.0.1"),
    6: ipaddress.IPv6Address("::1"),
}


class InboundRefused(NodenetError):
    """A request that is answered with a status and nothing else.

    The message is the exact ``error=`` of the access log (ztunnel: src/proxy.rs).
    """

    def __init__(self, status: int, text: str, *, hint: str | None = None) -> None:
        super().__init__(text, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundRoute:
    """Where a tunnel leads."""

    destination: Endpoint
    """The pod and the port of its application: what policies and labels are asked about."""
    dial: Endpoint
    """What is dialled: `destination`, or loopback with its port."""
    source: IPAddress | None
    """What the dial is bound to; None: the client's address, if the proxy may use it."""
    proxy_target: Endpoint | None
    """What a PROXY header names as destination; None: no header."""
    services: tuple[Service, ...]
    """Of which the request may be part, for labels."""


def read_request(method: str, authority: str) -> Authority:
    """What the request asks for (steps 1 and 2); InboundRefused with 400."""
    if method != "CONNECT":
        raise InboundRefused(BAD_REQUEST, f"expected method CONNECT, got {_quoted(method)}")
    found = parse_authority(authority)
    if found is None:
        raise InboundRefused(BAD_REQUEST, f"no valid authority pseudo header: {_quoted(authority)}")
    return found


def decide(
    state: MeshState,
    local: Workload,
    connection: IPAddress,
    authority: Authority,
    *,
    network: str,
    loopback_tunnels: bool = True,
    proxy_ports: frozenset[int] = PROXY_PORTS,
) -> InboundRoute:
    """The route of a tunnel (steps 4 and 5); InboundRefused with 400 or 503.

    ``local`` is the pod's workload, ``connection`` the address at which the peer reached it,
    ``network`` this cluster's. ``loopback_tunnels``: applications that expect a PROXY header are
    dialled over loopback (`LOCALHOST_APP_TUNNEL`).
    """
    validate(state, local, connection, authority, network=network)
    if isinstance(authority, HostPort):
        service = _service_of(state, local, authority)
        services: tuple[Service, ...] = (service,)
        port = _port_of(service, local, authority)
    else:
        services = tuple(services_of(state, local))
        port = authority.port
    if port in proxy_ports:
        raise _self_call()
    tunnel = local.application_tunnel
    proxy_target = _proxy_target(tunnel, authority, services, network)
    if tunnel is not None and tunnel.port:
        port = tunnel.port
        if port in proxy_ports:
            raise _self_call()
    destination = Endpoint(connection, port)
    loopback = _LOOPBACK[connection.version] if proxy_target and loopback_tunnels else None
    return InboundRoute(
        destination=destination,
        dial=destination if loopback is None else Endpoint(loopback, port),
        source=loopback,
        proxy_target=proxy_target,
        services=services,
    )


def validate(
    state: MeshState, local: Workload, connection: IPAddress, authority: Authority, *, network: str
) -> None:
    """That the pod may be asked for this address (step 4); InboundRefused with 400 otherwise.

    Its own, anything if it has an application tunnel, and whatever it is the waypoint of. A
    service's weighted waypoints are not asked, only its waypoint.
    """
    if (
        isinstance(authority, HostPort)
        or authority.ip == connection
        or local.application_tunnel is not None
    ):
        return
    # workload waypoints for workloads, service waypoints for services: no crossing over
    target = state.address(network, authority.ip, None)
    waypoint = None if target is None else target.waypoint
    if waypoint is None or not _leads_to(state, waypoint, local, connection):
        raise InboundRefused(
            BAD_REQUEST,
            f"ip mismatch: {connection} != {authority.ip}",
            hint="the peer has an address that is no longer this pod's, or takes it for a waypoint",
        )


def services_of(state: MeshState, local: Workload) -> Iterator[Service]:
    """The services of which the workload is an endpoint, as far as they are known."""
    for membership in local.services:
        service = state.service(membership.service)
        if service is not None:
            yield service


def service_for_labels(
    route: InboundRoute, local: Workload, forwarded_host: str | None
) -> Service | None:
    """Which service was addressed, for metrics and logs.

    The one that the ``forwarded`` header names, if it can be it; else the first one whose port
    leads to the application's.
    """
    for service in route.services:
        if service.hostname == forwarded_host:
            return service
    port = route.destination.port
    for service in route.services:
        own = local.ports_in(service.key) or ()
        if any(target == port for _, target in (*own, *service.ports)):
            return service
    return None


def source_for_labels(
    state: MeshState, peer: IPAddress, *, network: str, forwarded_network: str | None
) -> Workload | None:
    """The workload that the TCP peer is; what it says of itself fills what this leaves open.

    ``forwarded_network`` is the value of ``x-forwarded-network``: when it is another network than
    this cluster's, the address means something else here, and nobody is looked up.
    """
    if forwarded_network is not None and forwarded_network.lower() != network.lower():
        return None
    return state.workload_at(network, peer)


def _leads_to(
    state: MeshState, reference: GatewayAddress, local: Workload, connection: IPAddress
) -> bool:
    """Whether the waypoint is the local workload: the service it belongs to, or its address."""
    named = reference.destination
    found: tuple[Workload | Service | None, ...]
    if isinstance(named, NetworkAddress):
        ip = named.ip
        found = state.service_at(named.network, ip, None), state.workload_at(named.network, ip)
    else:
        found = (state.destination(named),)
    return any(
        each.owns(connection)
        if isinstance(each, Workload)
        else each is not None and local.ports_in(each.key) is not None
        for each in found
    )


def _service_of(state: MeshState, local: Workload, authority: HostPort) -> Service:
    # a waypoint may be asked for a service that the clients of its own namespace do not see
    found = state.service_named(authority.hostname, local.namespace) or state.service_named(
        authority.hostname, None
    )
    if found is None:
        raise InboundRefused(
            UNAVAILABLE, f"no service or workload for hostname: {authority.hostname}"
        )
    return found


def _port_of(service: Service, local: Workload, authority: HostPort) -> int:
    own = local.ports_in(service.key) or ()
    # a named port is 0 in the service, and each endpoint says what it is
    found = target_port(own, authority.port) or target_port(service.ports, authority.port)
    if not found:
        raise InboundRefused(
            UNAVAILABLE, f"requested service {authority} found, but cannot resolve port"
        )
    return found


def _proxy_target(
    tunnel: ApplicationTunnel | None,
    authority: Authority,
    services: tuple[Service, ...],
    network: str,
) -> Endpoint | None:
    if tunnel is None or tunnel.protocol is not TunnelKind.PROXY:
        return None
    if not isinstance(authority, HostPort):
        return authority
    [service] = services
    if not service.vips:
        raise InboundRefused(
            UNAVAILABLE,
            f"requested service {authority.hostname} found, but has no IP addresses",
        )
    best = min(service.vips, key=lambda vip: (vip.network != network, len(vip.address)))
    return Endpoint(best.ip, authority.port)


def _self_call() -> InboundRefused:
    return InboundRefused(UNAVAILABLE, "attempted recursive call to ourselves")


def _quoted(text: str) -> str:
    """Printable and bounded: it goes into a log."""
    return "".join(c if c.isprintable() else "?" for c in text[:_QUOTED_MAX])
