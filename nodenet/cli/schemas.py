"""JSON Schemas of what the reading commands print, generated from the types that are printed.

``python -m nodenet.cli.schemas docs/json`` writes them; a test compares what is there. Keys are
only ever added within a major version (docs/cli.md).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from nodenet.agents.konnectivity.views import AgentTunnelRow, ServerTunnelRow, WhyView
from nodenet.agents.ztunnel.explanation import Explanation
from nodenet.capture.show import PodState
from nodenet.cli.capture_explain import ConnectionExplanation
from nodenet.cli.capture_reports import EnrolPlan, EnrolReport, UnenrolReport, VerifyReport
from nodenet.cli.conn_detail import ConnectionDetail
from nodenet.cli.doctor import DoctorReport
from nodenet.cli.failures import FailureDocument
from nodenet.cli.konnectivity_curl import CurlReport
from nodenet.cli.konnectivity_show import AgentReport, ServerReport
from nodenet.cli.lab import DownReport, UpReport
from nodenet.cli.version import Version
from nodenet.cli.ztunnel_certificates import CertificateRow
from nodenet.cli.ztunnel_connections import ConnectionRow
from nodenet.cli.ztunnel_log_level import LogLevelRow
from nodenet.cli.ztunnel_policies import PolicyRow
from nodenet.cli.ztunnel_services import ServiceRow
from nodenet.cli.ztunnel_workloads import WorkloadRow
from nodenet.conns.connection import Connection
from nodenet.conns.events import Event, Lost
from nodenet.conns.rates import RateRow
from nodenet.conns.summary import Summary
from nodenet.kernel.objects import MapRow, ProgramRow
from nodenet.lab.demo import DemoReport
from nodenet.lab.status import LabStatus

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class PerCpu(TypedDict):
    """The value of one processor."""

    cpu: int
    value: dict[str, Any] | list[str]


class Entry(TypedDict, total=False):
    """One entry of a map: ``value``, or ``values`` for per-CPU maps; lists of bytes with --hex."""

    key: dict[str, Any] | list[str]
    value: dict[str, Any] | list[str]
    values: list[PerCpu]


#: By file name: what one document, or one line of a stream, is.
DOCUMENTS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "capture-enroll": ("nodenet capture enroll TARGET -j", (EnrolReport, EnrolPlan)),
    "capture-explain": ("nodenet capture explain SRC DST:PORT -j", (ConnectionExplanation,)),
    "capture-show": ("nodenet capture show -j", (list[PodState],)),
    "capture-unenroll": ("nodenet capture unenroll TARGET -j", (UnenrolReport,)),
    "capture-verify": ("nodenet capture verify -j", (VerifyReport,)),
    "conn-list": ("nodenet conn list -j", (list[Connection],)),
    "conn-show": ("nodenet conn show ID -j", (ConnectionDetail,)),
    "conn-summary": ("nodenet conn summary -j", (Summary,)),
    "conn-top": ("One line of nodenet conn top -j", (RateRow,)),
    "conn-watch": ("One line of nodenet conn watch -j", (Event, Lost)),
    "doctor": ("nodenet doctor -j", (DoctorReport,)),
    "error": ("What -j prints when a command fails", (FailureDocument,)),
    "konnectivity-curl": ("nodenet konnectivity curl URL -j", (CurlReport,)),
    "konnectivity-show": ("nodenet konnectivity show -j", (ServerReport, AgentReport)),
    "konnectivity-connections": (
        "nodenet konnectivity show --connections -j",
        (list[ServerTunnelRow], list[AgentTunnelRow]),
    ),
    "konnectivity-why": ("nodenet konnectivity show --why HOST -j", (WhyView,)),
    "lab-demo": ("nodenet lab demo -j", (DemoReport,)),
    "lab-down": ("nodenet lab down -j", (DownReport,)),
    "lab-status": ("nodenet lab status -j", (LabStatus,)),
    "lab-up": ("nodenet lab up -j", (UpReport,)),
    "map-dump": ("nodenet map dump NAME -j", (list[Entry],)),
    "map-show": ("nodenet map show -j", (list[MapRow],)),
    "prog-show": ("nodenet prog show -j", (list[ProgramRow],)),
    "version": ("nodenet version -j", (Version,)),
    "ztunnel-certificates": ("nodenet ztunnel certificates -j", (list[CertificateRow],)),
    "ztunnel-connections": ("nodenet ztunnel connections -j", (list[ConnectionRow],)),
    "ztunnel-explain": ("nodenet ztunnel explain SRC DST:PORT -j", (Explanation,)),
    "ztunnel-log-level": ("nodenet ztunnel log-level -j", (LogLevelRow, list[LogLevelRow])),
    "ztunnel-policies": ("nodenet ztunnel policies -j", (list[PolicyRow],)),
    "ztunnel-services": ("nodenet ztunnel services -j", (list[ServiceRow],)),
    "ztunnel-workloads": ("nodenet ztunnel workloads -j", (list[WorkloadRow],)),
}


def schema(name: str) -> dict[str, Any]:
    """The schema of one document."""
    title, types = DOCUMENTS[name]
    found, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    top = found[0] if len(found) == 1 else {"anyOf": list(found)}
    return {"$schema": _DIALECT, "title": title, **top, "$defs": dict(sorted(components.items()))}


def text(name: str) -> str:
    """The file's content."""
    return msgspec.json.format(msgspec.json.encode(schema(name)), indent=2).decode() + "\n"


def main(directory: str) -> None:
    """Writes every schema into the directory."""
    for name in DOCUMENTS:
        Path(directory, f"{name}.json").write_text(text(name))


if __name__ == "__main__":
    main(sys.argv[1])
