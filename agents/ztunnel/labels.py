"""The labels of the connection metrics: their names in order, and their values from facts.

Order, names and sources are ztunnel's (src/proxy/metrics.rs), so that Istio's dashboards and
recording rules work unchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from nodenet.agents.ztunnel.flow_facts import OUTBOUND, FlowFacts, Security
from nodenet.hbone.baggage import Baggage
from nodenet.mesh.model import Workload

UNKNOWN: Final = "unknown"
#: Up to ``response_flags``, which differs between the series of one connection.
HEAD: Final = (
    "reporter",
    "source_workload",
    "source_canonical_service",
    "source_canonical_revision",
    "source_workload_namespace",
    "source_principal",
    "source_app",
    "source_version",
    "source_cluster",
    "destination_service",
    "destination_service_namespace",
    "destination_service_name",
    "destination_workload",
    "destination_canonical_service",
    "destination_canonical_revision",
    "destination_workload_namespace",
    "destination_principal",
    "destination_app",
    "destination_version",
    "destination_cluster",
    "request_protocol",
)
FLAG: Final = "response_flags"
#: After it; the localities only of ends that are known.
TAIL: Final = (
    "connection_security_policy",
    "source_region",
    "source_zone",
    "destination_region",
    "destination_zone",
)


class Party(NamedTuple):
    """What labels say about one end; empty strings are unset."""

    workload: str
    canonical_service: str
    canonical_revision: str
    namespace: str
    app: str
    cluster: str
    region: str
    zone: str
    known: bool
    """Whether there is a workload or baggage at all."""


_NOBODY: Final = Party("", "", "", "", "", "", "", "", False)


def party(workload: Workload | None, baggage: Baggage | None) -> Party:
    """One end's labels: the workload's fields, and the baggage's where it has none.

    ``app`` is the canonical name of a workload, but the workload's name of baggage, as in ztunnel.
    """
    said = _NOBODY
    if baggage is not None:
        said = Party(
            baggage.workload_name,
            baggage.service_name,
            baggage.revision,
            baggage.namespace,
            baggage.workload_name,
            baggage.cluster,
            baggage.region,
            baggage.zone,
            True,
        )
    if workload is None:
        return said
    return Party(
        workload.workload_name or said.workload,
        workload.canonical_name or said.canonical_service,
        workload.canonical_revision or said.canonical_revision,
        workload.namespace or said.namespace,
        workload.canonical_name or said.app,
        workload.cluster_id or said.cluster,
        workload.locality.region or said.region,
        workload.locality.zone or said.zone,
        True,
    )


class LabelValues(NamedTuple):
    """Values of `HEAD` and of `TAIL`; the tail is shorter where an end is not known."""

    head: tuple[str, ...]
    tail: tuple[tuple[str, str], ...]
    """Name and value."""


def label_values(facts: FlowFacts, source: Party, destination: Party) -> LabelValues:
    """The values for one connection."""
    mtls = facts.security is Security.MTLS
    service, to = facts.service, facts.dst_workload
    head = (
        "source" if facts.direction == OUTBOUND else "destination",
        source.workload,
        source.canonical_service,
        source.canonical_revision,
        source.namespace,
        (facts.src_identity or "") if mtls else "",
        source.app,
        source.canonical_revision,
        source.cluster,
        service.hostname if service else "",
        service.namespace if service else "",
        service.name if service else "",
        destination.workload,
        destination.canonical_service,
        destination.canonical_revision,
        destination.namespace,
        facts.dst_identity or (to.identity if to else ""),
        destination.app,
        destination.canonical_revision,
        destination.cluster,
        "tcp",
    )
    tail = [("connection_security_policy", facts.security.value)]
    for end, known in (("source", source), ("destination", destination)):
        if known.known:
            tail.append((f"{end}_region", known.region or UNKNOWN))
            tail.append((f"{end}_zone", known.zone or UNKNOWN))
    return LabelValues(tuple(value or UNKNOWN for value in head), tuple(tail))


def escaped(value: str) -> str:
    """A label value as both text formats want it."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def rendered(values: LabelValues) -> tuple[str, str]:
    """The labels as text before and behind the value of `FLAG`, without braces."""
    head = ",".join(f'{n}="{escaped(v)}"' for n, v in zip(HEAD, values.head, strict=True))
    tail = ",".join(f'{name}="{escaped(value)}"' for name, value in values.tail)
    return f'{head},{FLAG}="', f'",{tail}'
