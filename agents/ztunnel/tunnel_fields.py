"""The header fields of a CONNECT and its answer (ztunnel: src/proxy/h2, src/baggage.rs)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nodenet.agents.ztunnel.address import Address
from nodenet.hbone import hpack_codec
from nodenet.hbone.baggage import Baggage, format_baggage
from nodenet.hbone.forwarded import format_forwarded
from nodenet.hbone.hpack_codec import HeaderBlock
from nodenet.hbone.traceparent import new_traceparent
from nodenet.mesh.model import Workload
from nodenet.mesh.route import InnerTunnel, Route

if TYPE_CHECKING:
    pass


class TunnelFields:
    """The header fields of one pod's tunnels. What does not change is encoded once."""

    __slots__ = ("_baggage", "_response_baggage", "_rng")

    def __init__(self, rng: random.Random, *, response_baggage: bool) -> None:
        self._rng = rng
        self._response_baggage = response_baggage
        self._baggage: tuple[Workload | None, HeaderBlock] = (None, HeaderBlock(b""))

    def connect_block(
        self, source: Workload, route: Route, client: Address, inner: InnerTunnel | None = None
    ) -> HeaderBlock:
        """The CONNECT request of a connection, or of the tunnel within its tunnel."""
        service = route.service
        host = None if service is None else service.hostname
        rest = b"".join(
            (
                self._baggage_field(source),
                hpack_codec.field(b"forwarded", format_forwarded(str(client), host)),
                hpack_codec.field(b"traceparent", new_traceparent(self._rng).header()),
                b""
                if inner is None
                else hpack_codec.field(b"x-forwarded-network", inner.network.encode()),
            )
        )
        return hpack_codec.connect(route.authority.encode(), rest)

    def response_block(self, workload: Workload) -> HeaderBlock:
        """The fields of a 200."""
        if not self._response_baggage:
            return HeaderBlock(b"")
        return self._baggage_field(workload)

    def _baggage_field(self, workload: Workload) -> HeaderBlock:
        known, field = self._baggage
        if known is not workload:
            value = format_baggage(_own_baggage(workload), workload.workload_type)
            field = hpack_codec.field(b"baggage", value) if value else HeaderBlock(b"")
            self._baggage = (workload, field)
        return field


def _own_baggage(workload: Workload) -> Baggage:
    """What we say of a workload."""
    return Baggage(
        cluster=workload.cluster_id,
        namespace=workload.namespace,
        workload_name=workload.workload_name,
        service_name=workload.canonical_name,
        revision=workload.canonical_revision,
        region=workload.locality.region,
        zone=workload.locality.zone,
    )
