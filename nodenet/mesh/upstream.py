"""Who answers at a destination: a workload, the port there, and the address to dial.

Source: ztunnel: src/state.rs. Both a service's own endpoints and waypoints are found here;
`nodenet.mesh.gateways` knows where references to waypoints and gateways lead.
"""

from __future__ import annotations

from functools import lru_cache
from logging import getLogger
from random import Random
from typing import Final, NamedTuple

from nodenet.endpoint import IPAddress
from nodenet.mesh.candidates import Candidates
from nodenet.mesh.load_balancing import Resolution, candidates
from nodenet.mesh.model import Endpoint, IpFamilies, Service, Workload, ip_of, target_port
from nodenet.mesh.refused import NoValidDestination
from nodenet.mesh.state import MeshState

logger = getLogger(__name__)

#: Lists of a service's names whose check is remembered: those of the services in use.
_SAN_LISTS_KEPT: Final = 1024
#: Parts of ``spiffe://td/ns/NS/sa/SA`` between its slashes.
_SPIFFE_PARTS: Final = 7


class Upstream(NamedTuple):
    """A workload that was chosen, and how it is to be addressed."""

    workload: Workload
    port: int
    """Of the workload; a service's port has been mapped."""
    service: Service | None
    """Through which it was found."""
    towards: Endpoint
    """Whose address, or at least family, is preferred among the workload's."""
    among: Candidates | None
    """What it was chosen from; None: no choice."""

    @property
    def identities(self) -> tuple[str, ...]:
        """Who may answer: the names of the service and the workload's own. Order is kept."""
        own = self.workload.identity
        sans = self.service_identities
        return sans if own in sans else (*sans, own)

    @property
    def service_identities(self) -> tuple[str, ...]:
        """The names of the service alone."""
        if self.service is None or not self.service.subject_alt_names:
            return ()
        return _spiffe_ids(self.service.subject_alt_names)

    def address(self, row: str) -> IPAddress | None:
        """What to dial; None when only a hostname leads there.

        NoValidDestination, by the row that wants to know, when nothing does.
        """
        workload = self.workload
        wanted = self.towards.ip.packed
        owned = workload.addresses
        if wanted in owned:
            return self.towards.ip
        families = self.service.ip_families if self.service is not None else IpFamilies.AUTOMATIC
        allowed = [each for each in owned if families.accepts(each)]
        if allowed:
            alike = (each for each in allowed if len(each) == len(wanted))
            return ip_of(next(alike, allowed[0]))
        if not workload.hostname:
            raise NoValidDestination(workload, row)
        return None


def answering(
    state: MeshState, network: str, destination: Endpoint, namespace: str | None
) -> Service | Workload | None:
    """Who answers at an address: a service before a workload (`MeshState.address` asks the other
    way round).
    """
    return state.service_at(network, destination.ip, namespace) or state.workload_at(
        network, destination.ip
    )


def choose(
    state: MeshState,
    found: Service | Workload | None,
    source: Workload,
    port: int,
    towards: Endpoint,
    resolution: Resolution,
    rng: Random,
) -> Upstream | None:
    """The workload itself, or an endpoint of the service at this port of it.

    None when no endpoint may be chosen, or when the port leads nowhere.
    """
    if found is None:
        return None
    if isinstance(found, Workload):
        return Upstream(found, port, None, towards, None)
    among = candidates(state.services, found, source, port, resolution)
    endpoint = among.choose(rng)
    workload = state.workload(endpoint.uid) if endpoint is not None else None
    if endpoint is None or workload is None:
        return None
    # what the endpoint maps itself, what the service says, or any port of an application tunnel
    target = target_port(endpoint.ports, port)
    if target is None:
        target = target_port(found.ports, port)
    if not target:
        tunnel = workload.application_tunnel
        if tunnel is None or tunnel.port is None:
            return None
        target = port
    return Upstream(workload, target, found, towards, among)


@lru_cache(_SAN_LISTS_KEPT)
def _spiffe_ids(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are SPIFFE ids, each once; the others can be nobody's and are warned about."""
    for name in names:
        if not is_spiffe_id(name):
            logger.warning("skipping the service's name %r: not a SPIFFE id", name)
    return tuple(dict.fromkeys(name for name in names if is_spiffe_id(name)))


def is_spiffe_id(name: str) -> bool:
    """Whether it reads ``spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT``, no more and no less."""
    parts = name.split("/")
    return (
        len(parts) == _SPIFFE_PARTS
        and parts[0] == "spiffe:"
        and parts[1] == ""
        and parts[3] == "ns"
        and parts[5] == "sa"
        and all((parts[2], parts[4], parts[6]))
    )
