"""Live connections in the form of the admin surface."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from nodenet.agents.ztunnel.flow_facts import OUTBOUND, Security
from nodenet.agents.ztunnel.telemetry import Ended, OpenFlow
from nodenet.agents.ztunnel.views import ProxyConnection, SecurityRow
from nodenet.mesh.model import Workload
from nodenet.times import rfc3339_ns


def connection_of(flow: OpenFlow, ended: Ended | None = None) -> ProxyConnection:
    """One row of ``/v1/connections``, also of a connection that has ended."""
    facts, progress = flow.facts, flow.progress
    sent = received = None
    if ended is not None:
        sent, received = ended.sent, ended.received
    elif progress is not None:
        sent, received = progress.sent, progress.received
    outbound = facts.direction == OUTBOUND
    mtls = facts.security is Security.MTLS
    target = facts.original_dst or facts.dst
    return ProxyConnection(
        id=facts.conn_id,
        pod=facts.pod,
        dir="out" if outbound else "in",
        local=str(facts.src if outbound else target),
        peer=str(target if outbound else facts.src),
        peer_name=_name(facts.dst_workload if outbound else facts.src_workload),
        security="mtls" if mtls else "plain",
        peer_identity=(facts.dst_identity if outbound else facts.src_identity) if mtls else None,
        upstream=str(facts.dst if outbound else target),
        policy=flow.policy,
        bytes_sent=sent,
        bytes_received=received,
        start=rfc3339_ns(flow.started_ns),
        row=facts.row,
        protocol=facts.protocol,
        hbone_conn=flow.hbone_conn,
        stream_id=flow.stream_id,
        src=str(facts.src),
        original_dst=_original(flow),
        actual_dst=str(facts.dst),
        service=None if facts.service is None else facts.service.hostname,
        dialled_from=None if flow.dialled_from is None else str(flow.dialled_from),
        end=None if ended is None else rfc3339_ns(ended.end_ns),
        error=None if ended is None else ended.error,
        flag=None if ended is None else ended.flag.value,
    )


def is_named(flow: OpenFlow, names: Collection[str]) -> bool:
    """Whether one of the names is its id or an ENDPOINT of its own."""
    facts = flow.facts
    return (
        facts.conn_id in names
        or str(facts.src) in names
        or (flow.dialled_from is not None and str(flow.dialled_from) in names)
    )


def security_of(flow: OpenFlow) -> SecurityRow | None:
    """How it is secured; None when nothing tells it from others."""
    facts = flow.facts
    outbound = facts.direction == OUTBOUND
    end = facts.src if outbound else flow.dialled_from
    if end is None:
        return None
    return SecurityRow(
        facts.pod,
        "out" if outbound else "in",
        str(end),
        "mtls" if facts.security is Security.MTLS else "plain",
    )


def dumped(flows: Iterable[OpenFlow]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """``connections`` of ``workloadState``, by the name of the pod."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for flow in flows:
        facts = flow.facts
        of_pod = found.setdefault(facts.pod, {"inbound": [], "outbound": []})
        of_pod[facts.direction].append(
            {
                "src": str(facts.src),
                "originalDst": _original(flow),
                "actualDst": str(facts.dst),
                "protocol": facts.protocol,
            }
        )
    return found


def _original(flow: OpenFlow) -> str | None:
    """Inbound there is only what the ``forwarded`` header told."""
    facts = flow.facts
    if facts.direction == OUTBOUND:
        return None if facts.original_dst is None else str(facts.original_dst)
    return None if facts.service is None else facts.service.hostname


def _name(workload: Workload | None) -> str | None:
    if workload is None:
        return None
    return f"{workload.namespace}/{workload.name}" if workload.namespace else workload.name
