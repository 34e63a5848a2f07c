"""What is known of a connection of the mesh when it is counted and logged."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from nodenet.agents.ztunnel.address import Address, ip_address
from nodenet.agents.ztunnel.connection import socket_cookie
from nodenet.agents.ztunnel.flow_facts import INBOUND, OUTBOUND, FlowFacts, Security
from nodenet.hbone.baggage import parse_baggage
from nodenet.hbone.forwarded import parse_forwarded_host
from nodenet.hbone.headers import Request, Response
from nodenet.mesh import inbound as inbound_rules
from nodenet.mesh.inbound import InboundRoute
from nodenet.mesh.model import Workload
from nodenet.mesh.route import Route

if TYPE_CHECKING:
    from nodenet.agents.ztunnel.inbound import InboundFlow
    from nodenet.agents.ztunnel.mesh_pod import MeshPod
    from nodenet.agents.ztunnel.outbound import OutboundFlow


def outbound_facts(pod: str, flow: OutboundFlow, source: Workload, route: Route) -> FlowFacts:
    """What is known of an outbound connection when its way is."""
    assert route.next_hop is not None
    tunnelled = bool(route.authority)
    destination = route.workload
    return FlowFacts(
        direction=OUTBOUND,
        conn_id=socket_cookie(flow.near),
        pod=pod,
        src=flow.client,
        dst=Address(str(route.next_hop.ip), route.next_hop.port),
        original_dst=flow.original,
        hbone_addr=route.authority or None,
        protocol=route.protocol.value,
        security=Security.MTLS if tunnelled else Security.PLAIN,
        src_workload=source,
        src_identity=source.identity if tunnelled else None,
        dst_workload=destination,
        dst_identity=destination.identity if destination is not None else None,
        service=route.service,
        row=route.row,
    )


def inner_facts(facts: FlowFacts, identity: str, response: Response) -> FlowFacts:
    """What the proxy behind a gateway has told, in place of what is known of the gateway."""
    return msgspec.structs.replace(
        facts,
        dst_workload=None,
        dst_baggage=_baggage_of(tuple(response.get_all(b"baggage"))),
        dst_identity=identity,
    )


def inbound_facts(
    pod: MeshPod, flow: InboundFlow, workload: Workload, route: InboundRoute, request: Request
) -> FlowFacts:
    """What is known of a tunnel when its way is."""
    context, peer = pod.context, flow.peer
    network_field = request.get(b"x-forwarded-network")
    source = inbound_rules.source_for_labels(
        context.state,
        ip_address(peer.client.host),
        network=context.network,
        forwarded_network=None if network_field is None else network_field.decode("latin-1"),
    )
    said = request.get_all(b"baggage") if context.mesh.response_baggage else ()
    service = inbound_rules.service_for_labels(
        route, workload, parse_forwarded_host(request.get(b"forwarded"))
    )
    return FlowFacts(
        direction=INBOUND,
        conn_id=peer.conn_id,
        pod=pod.served.pod.name,
        src=peer.client,
        dst=peer.local,
        original_dst=Address(str(route.destination.ip), route.destination.port),
        hbone_addr=request.authority,
        protocol="HBONE",
        security=Security.MTLS,
        src_workload=source,
        src_baggage=_baggage_of(tuple(said)) if said else None,
        src_identity=peer.identity_text,
        dst_workload=workload,
        dst_identity=workload.identity,
        service=service,
    )


#: Clients of one node's pods say the same in each of their connections.
_baggage_of: Final = lru_cache(4096)(parse_baggage)
