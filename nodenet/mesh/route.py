"""What a decision says: where an outbound connection goes, how, and who must answer there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from random import Random

import msgspec

from nodenet.endpoint import IPAddress
from nodenet.mesh.model import Endpoint, Service, Workload
from nodenet.mesh.refused import EmptyResolvedAddresses


class Protocol(Enum):
    """How the bytes travel; the values are those of ``workloadState`` in a dump."""

    TCP = "TCP"
    HBONE = "HBONE"
    DOUBLE_HBONE = "DOUBLEHBONE"


class Resolve(msgspec.Struct, frozen=True, kw_only=True):
    """The workload chosen has a hostname only; its addresses are the caller's to find (DNS)."""

    hostname: str
    uid: str
    """Of the workload, for the errors."""
    prefer_ipv6: bool
    port: int
    """To dial at the address found."""
    authority_port: int | None
    """The port of an authority whose host is the address found; None: the route's one stands."""


class InnerTunnel(msgspec.Struct, frozen=True, kw_only=True):
    """The tunnel within the tunnel to another network's gateway. It is not pooled."""

    identities: tuple[str, ...]
    """Who may answer at its far end: the service's names alone. Empty: nobody, so it fails."""
    network: str
    """Value of its ``x-forwarded-network`` header; may be empty."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where a connection goes."""

    protocol: Protocol
    next_hop: Endpoint | None
    """What to dial; None as long as `resolve` is set."""
    row: str
    """The row that decided: ``Z4b``, ``Z5c``, ``Z9``."""
    authority: str = ""
    """Of the CONNECT request (of both, in double HBONE); empty with TCP."""
    identities: tuple[str, ...] = ()
    """SPIFFE ids of which the far end of the (outer) tunnel must have one; empty with TCP."""
    inner: InnerTunnel | None = None
    """Set with DOUBLE_HBONE."""
    service: Service | None = None
    """What was addressed, for labels and the ``forwarded`` header; None: an address."""
    workload: Workload | None = None
    """Who is dialled: the destination, its waypoint or a gateway; None: unknown to the mesh."""
    resolve: Resolve | None = None

    def resolved(self, addresses: Sequence[IPAddress], rng: Random) -> Route:
        """The route to one of the addresses of `resolve`: of the wanted family, else of the other.

        EmptyResolvedAddresses when there are none.
        """
        wanted = self.resolve
        if wanted is None:
            return self
        if not addresses:
            raise EmptyResolvedAddresses(wanted.uid, self.row)
        version = 6 if wanted.prefer_ipv6 else 4
        alike = [ip for ip in addresses if ip.version == version]
        ip = rng.choice(alike or addresses)
        authority = self.authority
        if wanted.authority_port is not None:
            authority = str(Endpoint(ip, wanted.authority_port))
        return msgspec.structs.replace(
            self, next_hop=Endpoint(ip, wanted.port), authority=authority, resolve=None
        )
