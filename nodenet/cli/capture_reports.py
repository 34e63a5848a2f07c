"""What the changing and checking verbs of ``nodenet capture`` report, and how it looks as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nodenet.abi import DNS_PORT
from nodenet.capture.verify import PodVerdict

if TYPE_CHECKING:
    from nodenet.capture.result import EnrolResult
    from nodenet.cli.style import Style


class EnrolledPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod after ``capture enroll``."""

    pod: str
    outcome: str
    """``enrolled``, ``changed``, ``unchanged``."""
    backend: str
    ips: tuple[str, ...]
    existing: int
    """Connections that are older than the enrolment."""
    existing_reset: int
    listeners: tuple[int, ...]
    """The proxy's ports that were listened on when the pod went live."""
    listeners_missing: tuple[int, ...]
    """Those that this enrolment needs and nobody listened on."""
    on_proxy_down: str
    duration_us: int


class EnrolReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``capture enroll``."""

    ok: bool
    pods: tuple[EnrolledPod, ...]


class PlannedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One map entry that an enrolment would write."""

    map: str
    key: str
    value: str


class ExistingConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that is older than the enrolment would be."""

    pod: str
    local: str
    remote: str


class EnrolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``capture enroll --dry-run``."""

    ok: bool
    writes: tuple[PlannedWrite, ...]
    existing: tuple[ExistingConnection, ...]
    """Kept uncaptured, or reset with ``--existing reset``."""
    text: str


class RemovedPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that was taken out."""

    pod: str
    existing: int | None
    """Its proxied connections that live on; None: not counted."""
    existing_reset: int
    routes_kept: bool


class UnenrolReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``capture unenroll``."""

    ok: bool
    pods: tuple[RemovedPod, ...]
    detached: bool
    """Whether the programs were taken out too (``--all``)."""


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``capture verify``."""

    ok: bool
    pods: tuple[PodVerdict, ...]


def enrolled_pod(result: EnrolResult) -> EnrolledPod:
    """The row of one enrolment."""
    from nodenet.capture.show import wanted_ports

    record = result.record
    needed = wanted_ports(record) if record.backend == "ebpf" else ()
    return EnrolledPod(
        pod=record.name,
        outcome=result.outcome,
        backend=record.backend,
        ips=record.ips,
        existing=result.existing,
        existing_reset=result.existing_reset,
        listeners=result.listeners,
        listeners_missing=tuple(port for port in needed if port not in result.listeners),
        on_proxy_down=record.on_proxy_down,
        duration_us=round(result.seconds * 1e6),
    )


def enrolled_text(report: EnrolReport, _style: Style) -> str:
    """A line a pod, and what nobody listens on."""
    lines = []
    for pod in report.pods:
        if pod.outcome == "unchanged":
            lines.append(f"already enrolled, nothing changed: {pod.pod}")
        else:
            verb = "enrolled" if pod.outcome == "enrolled" else "changed"
            facts = f"{pod.backend}, {len(pod.ips)} addresses, {pod.duration_us / 1000:.1f} ms"
            line = f"{verb} {pod.pod} ({facts})"
            if pod.existing_reset:
                line += f"; {pod.existing_reset} existing connections reset"
            elif pod.existing:
                line += (
                    f"; {pod.existing} existing connections kept uncaptured: "
                    f"nodenet conn list --reason pre-enrolment --pod {pod.pod}"
                )
            lines.append(line)
        lines += _missing(pod)
    return "\n".join(lines)


def _missing(pod: EnrolledPod) -> list[str]:
    outcome = "are refused" if pod.on_proxy_down == "closed" else "pass uncaptured"
    lines = []
    if others := [port for port in pod.listeners_missing if port != DNS_PORT]:
        ports = " and ".join(map(str, others))
        lines.append(
            f"the proxy does not listen in this pod yet ({ports}): until it does, new connections "
            f"{outcome}; start it: nodenet ztunnel run"
        )
    if DNS_PORT in pod.listeners_missing:
        lines.append(
            f"no DNS proxy listens at {DNS_PORT} in this pod: its DNS queries {outcome}; nodenet's "
            "ztunnel has none yet, so use one of your own, or --dns off"
        )
    return lines


def removed_text(report: UnenrolReport, _style: Style) -> str:
    """A line a pod."""
    lines = []
    for pod in report.pods:
        line = f"un-enrolled {pod.pod}"
        if pod.existing_reset:
            line += f"; {pod.existing_reset} captured connections reset"
        elif pod.existing:
            line += f"; {pod.existing} captured sockets live on through the proxy"
        if pod.routes_kept:
            line += "; the policy routes stay for them"
        lines.append(line)
    if report.detached:
        lines.append("programs detached, pins removed")
    return "\n".join(lines)


def verified_text(report: VerifyReport, style: Style) -> str:
    """A line a check; of a failed one what it means and what to do."""
    lines = []
    failed = total = 0
    width = max(14, *(len(check.id) for pod in report.pods for check in pod.checks))
    for pod in report.pods:
        if len(report.pods) > 1:
            lines.append(pod.pod)
        for check in pod.checks:
            total += check.state != "skip"
            failed += check.state == "fail"
            word = "FAIL" if check.state == "fail" else check.state
            lines.append(f"{style.paint(word)}{' ' * (4 - len(word))}  {check.id:<{width}} "
                         f"{check.found}")  # fmt: skip
            if check.state == "fail":
                rows = ", ".join([*([check.rule] if check.rule else []), *check.parity])
                suffix = f"  (rule {rows})" if rows else ""
                lines.append(f"      {'means':<{width}} {check.means}{suffix}")
                lines.append(f"      {'do':<{width}} {check.do}")
    lines.append(f"{failed} of {total} checks failed" if failed else f"{total} checks ok")
    return "\n".join(lines)
