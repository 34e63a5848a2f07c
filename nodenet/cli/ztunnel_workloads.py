"""`ztunnel workloads`: who is in the mesh."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from nodenet.cli import ztunnel_dump
from nodenet.cli.tables import Column, Elide
from nodenet.cli.ztunnel_ask import Asked
from nodenet.cli.ztunnel_dump import Dump
from nodenet.cli.ztunnel_names import short_destination
from nodenet.cli.ztunnel_ready import select


class WorkloadRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One workload, as ``ztunnel workloads -j`` prints it."""

    namespace: str
    pod: str
    address: str | None
    """The first of `ips`, else the hostname."""
    node: str | None
    waypoint: str | None
    """``NS/HOSTNAME`` or ``NETWORK/IP``."""
    protocol: Literal["hbone", "tcp"]
    health: Literal["healthy", "unhealthy"]
    uid: str
    service_account: str | None
    network: str
    ips: list[str]
    identity: str
    services: list[str]
    """Keys, ``NS/HOSTNAME``."""
    policies: list[str]
    """Keys of the policies that select it."""
    local: bool
    """Whether it runs on the node whose proxy was asked."""
    source: Literal["xds", "file"]


COLUMNS = (
    Column("NAMESPACE", "namespace"),
    Column("POD", "pod", max=40, elide=Elide.MIDDLE, keep=True),
    Column("ADDRESS", "address", max=39, keep=True),
    Column("NODE", "node", max=24, elide=Elide.MIDDLE),
    Column("WAYPOINT", "waypoint", lambda value, _: short_destination(value), max=32,
           elide=Elide.MIDDLE),
    Column("PROTOCOL", "protocol"),
    Column("HEALTH", "health", state=True),
    Column("UID", "uid", wide=True),
    Column("SA", "service_account", wide=True),
    Column("NETWORK", "network", wide=True, value=lambda row: row.network or None),
    Column("SERVICES", "services", wide=True),
)  # fmt: skip


def rows(asked: Asked, namespace: str | None, pod: str | None) -> list[Any]:
    """Workloads by namespace and name; of several proxies each once."""
    if asked.istio:
        return _raw(asked, namespace, pod)
    found: dict[str, WorkloadRow] = {}
    for proxy, dump in asked.dumps("workloads", "staticConfig", "config"):
        node = (proxy.node if proxy else None) or dump.node
        for row in _rows_of(dump, node):
            before = found.get(row.uid)
            if before is None or row.local:
                found[row.uid] = row
    chosen = select(
        asked,
        found.values(),
        lambda row: f"{row.namespace}/{row.pod}",
        what="workload",
        given=pod,
        namespace=namespace,
    )
    return sorted(chosen, key=lambda row: (row.namespace, row.pod, row.uid))


def _rows_of(dump: Dump, node: str | None) -> list[WorkloadRow]:
    static = {workload.uid for workload in dump.static_config.workloads}
    return [_row(workload, node, workload.uid in static) for workload in dump.workloads]


def _row(workload: ztunnel_dump.Workload, node: str | None, from_file: bool) -> WorkloadRow:
    ips = workload.workload_ips
    return WorkloadRow(
        namespace=workload.namespace,
        pod=workload.name,
        address=ips[0] if ips else workload.hostname or None,
        node=workload.node or None,
        waypoint=workload.waypoint.destination if workload.waypoint else None,
        protocol="hbone" if workload.protocol == "HBONE" else "tcp",
        health="healthy" if workload.status == "Healthy" else "unhealthy",
        uid=workload.uid,
        service_account=workload.service_account or None,
        network=workload.network,
        ips=ips,
        identity=(
            f"spiffe://{workload.trust_domain}/ns/{workload.namespace}"
            f"/sa/{workload.service_account or 'default'}"
        ),
        services=workload.services,
        policies=workload.authorization_policies,
        local=node is not None and workload.node == node,
        source="file" if from_file else "xds",
    )


def _raw(asked: Asked, namespace: str | None, pod: str | None) -> list[Any]:
    every: dict[str, Any] = {}
    for _, raw, where in asked.raw("workloads"):
        for item in ztunnel_dump.raw_items(raw, "workloads", where):
            every.setdefault(item.get("uid", ""), item)
    return select(
        asked,
        every.values(),
        lambda item: f"{item.get('namespace')}/{item.get('name')}",
        what="workload",
        given=pod,
        namespace=namespace,
    )
