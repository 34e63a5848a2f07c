"""Live connections in the form of the admin surface."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nodenet.agents.ztunnel.flow_facts import OUTBOUND, Security
from nodenet.agents.ztunnel.telemetry import OpenFlow
from nodenet.agents.ztunnel.views import ProxyConnection
from nodenet.mesh.model import Workload
from nodenet.times import rfc3339_ns


def connection_of(flow: OpenFlow) -> ProxyConnection:
    """One row of ``/v1/connections``."""
    facts, progress = flow.facts, flow.progress
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
        bytes_sent=None if progress is None else progress.sent,
        bytes_received=None if progress is None else progress.received,
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
