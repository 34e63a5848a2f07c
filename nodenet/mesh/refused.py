"""Why an outbound connection is not made; the texts are those that access logs carry.

``line()`` adds what to do about it, the ``error=`` of a log has the message alone. Source of the
texts: ztunnel: src/proxy.rs, so that dashboards and runbooks keep working.
"""

from __future__ import annotations

from nodenet.errors import NodenetError
from nodenet.mesh.model import Endpoint, Workload


class Refused(NodenetError):
    """Base of the refusals. ``row`` is the row of the decision that said so."""

    row = ""


class SelfCall(Refused):
    """The application addressed one of the proxy's own listeners (row Z1)."""

    row = "Z1"

    def __init__(self) -> None:
        super().__init__(
            "attempted recursive call to ourselves",
            hint="connect to the application's port, not to the proxy's",
        )


class UnknownSourceWorkload(Refused):
    """The pod that connects is not in the mesh state (row Z2)."""

    row = "Z2"

    def __init__(self, *, namespace: str, name: str, service_account: str) -> None:
        super().__init__(
            "failed to fetch information about local workload: "
            f"{service_account}.{namespace} ({name})",
            hint="the control plane or the mesh file has no such pod",
        )
        self.namespace = namespace
        self.name = name
        self.service_account = service_account


class UnknownWaypoint(Refused):
    """The waypoint of a service (row Z4) or a workload (row Z8) is nowhere, or has no endpoint."""

    def __init__(self, waypoint: str, row: str) -> None:
        super().__init__(
            f"unknown waypoint: waypoint {waypoint} not found",
            hint="see that the waypoint runs and is healthy: nodenet ztunnel services",
        )
        self.waypoint = waypoint
        self.row = row


class NoHealthyUpstream(Refused):
    """The service is known and nothing of it may be connected to (row Z5b)."""

    row = "Z5b"

    def __init__(self, destination: Endpoint) -> None:
        super().__init__(
            f"no healthy upstream: {destination}",
            hint="see the ports and endpoints of the service: nodenet ztunnel services",
        )
        self.destination = destination


class NoService(Refused):
    """A destination in another network that was not addressed as a service (row Z6)."""

    row = "Z6"

    def __init__(self, destination: Endpoint) -> None:
        super().__init__(
            f"no service for target address: {destination}",
            hint="workloads of another network are reached through a service",
        )
        self.destination = destination


class UnknownNetworkGateway(Refused):
    """The gateway to the destination's network is nowhere or has no endpoint (rows Z4a, Z6)."""

    def __init__(self, gateway: str, row: str) -> None:
        super().__init__(
            f"unknown network gateway: network gateway {gateway} not found",
            hint="see that the gateway runs and its service lists the port",
        )
        self.gateway = gateway
        self.row = row


class NoValidDestination(Refused):
    """The workload chosen has no address, no hostname, and no way through a gateway (any row)."""

    def __init__(self, workload: Workload, row: str) -> None:
        super().__init__(
            "no valid routing destination for workload: "
            f"Workload{{{workload.name} with uid {workload.uid} ({workload.protocol.name})}}",
            hint="it has neither an address nor a network gateway",
        )
        self.workload = workload
        self.row = row


class NoResolvedAddresses(Refused):
    """Resolving the hostname of a workload failed, after the decision that ``row`` made."""

    def __init__(self, uid: str, row: str) -> None:
        super().__init__(
            f"no ip addresses were resolved for workload: {uid}",
            hint="see the proxy's /etc/resolv.conf",
        )
        self.uid = uid
        self.row = row


class EmptyResolvedAddresses(Refused):
    """The hostname of a workload has no address, as it turned out after the decision of ``row``."""

    def __init__(self, uid: str, row: str) -> None:
        super().__init__(
            f"ip addresses were resolved for workload {uid}, "
            "but valid dns response had no A/AAAA records",
            hint="see the records of its hostname",
        )
        self.uid = uid
        self.row = row
