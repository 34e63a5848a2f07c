"""`ztunnel services`: what can be addressed, and who answers."""

from __future__ import annotations

from typing import Any

import msgspec

from nodenet.cli import ztunnel_dump
from nodenet.cli.tables import Column, Elide
from nodenet.cli.ztunnel_ask import Asked
from nodenet.cli.ztunnel_dump import Dump
from nodenet.cli.ztunnel_names import short_destination
from nodenet.cli.ztunnel_ready import select


class EndpointRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One workload behind a service."""

    uid: str
    ip: str | None
    ports: dict[str, int]
    """Its own mapping, where it has one."""
    healthy: bool


class ServiceRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One service, as ``ztunnel services -j`` prints it."""

    namespace: str
    name: str
    hostname: str
    vip: str | None
    """The first of `vips`, without its network."""
    vips: list[str]
    """``NETWORK/IP``."""
    ports: dict[str, int]
    """Service port to target port; target 0 is a named port."""
    waypoint: str | None
    endpoints_healthy: int
    endpoints_total: int
    endpoints: list[EndpointRow]
    load_balancing: dict[str, Any] | None

    @property
    def key(self) -> str:
        """``NS/HOSTNAME``, for -o name and --watch."""
        return f"{self.namespace}/{self.hostname}"


def _ports(ports: dict[str, int], _exact: bool) -> str:
    def one(port: str, target: int) -> str:
        return port if int(port) == target else f"{port}:{target or 'named'}"

    return ",".join(one(*pair) for pair in ports.items()) or "-"


COLUMNS = (
    Column("NAMESPACE", "namespace"),
    Column("NAME", "name", max=40, elide=Elide.MIDDLE, keep=True),
    Column("VIP", "vip", max=39, keep=True),
    Column("PORTS", "ports", _ports, max=24, elide=Elide.END),
    Column("WAYPOINT", "waypoint", lambda value, _: short_destination(value), max=32,
           elide=Elide.MIDDLE),
    Column("ENDPOINTS", "endpoints_total",
           value=lambda row: f"{row.endpoints_healthy}/{row.endpoints_total}"),
    Column("HOSTNAME", "hostname", wide=True),
    Column("VIPS", "vips", wide=True),
)  # fmt: skip


def rows(asked: Asked, namespace: str | None, name: str | None) -> list[Any]:
    """Services by namespace and name; of several proxies each once."""
    if asked.istio:
        return _raw(asked, namespace, name)
    found: dict[str, ServiceRow] = {}
    for _, dump in asked.dumps("services", "workloads"):
        for row in _rows_of(dump):
            found.setdefault(f"{row.namespace}/{row.hostname}", row)
    chosen = select(
        asked,
        found.values(),
        lambda row: f"{row.namespace}/{row.name}",
        what="service",
        given=name,
        namespace=namespace,
    )
    return sorted(chosen, key=lambda row: (row.namespace, row.name, row.hostname))


def _rows_of(dump: Dump) -> list[ServiceRow]:
    # a dump lists those of the endpoints that may have connections; workloads know all
    behind: dict[str, list[ztunnel_dump.Workload]] = {}
    for workload in dump.workloads:
        for key in workload.services:
            behind.setdefault(key, []).append(workload)
    return [_row(service, behind.get(service.key, [])) for service in dump.services]


def _row(service: ztunnel_dump.Service, workloads: list[ztunnel_dump.Workload]) -> ServiceRow:
    endpoints = []
    for workload in workloads:
        own = service.endpoints.get(workload.uid)
        endpoints.append(
            EndpointRow(
                uid=workload.uid,
                ip=workload.workload_ips[0] if workload.workload_ips else None,
                ports=own.port if own is not None else {},
                healthy=workload.status == "Healthy",
            )
        )
    return ServiceRow(
        namespace=service.namespace,
        name=service.name,
        hostname=service.hostname,
        vip=service.vips[0].rpartition("/")[2] if service.vips else None,
        vips=service.vips,
        ports=service.ports,
        waypoint=service.waypoint.destination if service.waypoint else None,
        endpoints_healthy=sum(each.healthy for each in endpoints),
        endpoints_total=len(endpoints),
        endpoints=sorted(endpoints, key=lambda each: each.uid),
        load_balancing=service.load_balancer,
    )


def _raw(asked: Asked, namespace: str | None, name: str | None) -> list[Any]:
    every: dict[str, Any] = {}
    for _, raw, where in asked.raw("services"):
        for item in ztunnel_dump.raw_items(raw, "services", where):
            every.setdefault(f"{item.get('namespace')}/{item.get('hostname')}", item)
    return select(
        asked,
        every.values(),
        lambda item: f"{item.get('namespace')}/{item.get('name')}",
        what="service",
        given=name,
        namespace=namespace,
    )
