"""``nodenet doctor``: will it work here, what is missing, what that costs, how to get it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import click
import msgspec

from nodenet import __version__
from nodenet.cli.commands import object_command
from nodenet.cli.globals import Globals, pass_globals
from nodenet.cli.output import emit_report
from nodenet.cli.params import OneOf
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, Elide, render_table
from nodenet.errors import NodenetError, NotPermitted, NotSupported
from nodenet.kernel import cgroups, pins
from nodenet.kernel.host_facts import lockdown, rooms
from nodenet.kernel.probes import Check, Group, State, obstacles, run_probes

ROOMS = "rooms"
#: What a group with nothing missing gives its user.
_GIVES = {
    Group.CAPTURE: "outbound, inbound and DNS capture work, IPv4 and IPv6",
    Group.STATISTICS: "live and closed connections, counters, socket dumps",
    Group.IPTABLES: "--backend iptables works too",
}
#: Program types, whose refusal reads "programs refused".
_LOADED_BY = "BPF_PROG_LOAD"

COLUMNS = (
    Column("FEATURE", "feature", max=28, elide=Elide.END),
    Column("STATE", "state", max=8, state=True, value=lambda check: check.state.value),
    Column("MEANS", "means", max=44, elide=Elide.END, value=lambda check: check.means or None),
    Column("GET IT", "fix", max=44, elide=Elide.END),
    Column("ERRNO", "errno", wide=True),
    Column("MS", "ms", lambda ms, _exact: f"{ms:.1f}", right=True, wide=True),
    Column("PROBED BY", "probed_by", wide=True),
)


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``nodenet doctor -j``."""

    ok: bool
    """Nothing that was looked at keeps the capture from working."""
    capture: bool | None
    """Whether the eBPF capture works; None when --only left that open."""
    kernel: str
    machine: str
    cgroup2: str | None
    lockdown: str
    """``none``, ``integrity``, ``confidentiality``, ``unknown``."""
    nodenet: str
    rooms: dict[str, bool]
    checks: list[Check]


class CaptureImpossible(NotSupported):
    """What keeps the eBPF capture from working here (exit 3)."""

    def __init__(self, check: Check, found_lockdown: str, iptables: bool) -> None:
        programs = " programs" if check.probed_by == _LOADED_BY else ""
        refused = f"refused ({check.errno})" if check.errno else "missing"
        reason = f"lockdown={found_lockdown}" if check.errno == "EPERM" else check.means
        other = " or use --backend iptables" if iptables else ""
        NodenetError.__init__(
            self,
            f"capture cannot work: {check.feature}{programs} {refused}: {reason}",
            hint=f"{check.fix}{other}",
        )
        self.feature = check.id
        self.needs = check.fix or ""


def require_rights() -> None:
    """NotPermitted when this process may not even try."""
    missing = pins.missing_capabilities()
    if missing:
        named = "CAP_BPF" if "CAP_BPF" in missing else ", ".join(missing)
        raise NotPermitted(
            f"cannot probe: {named} missing (uid {os.geteuid()})", hint="run with sudo"
        )


def examine(only: str | None) -> DoctorReport:
    """Runs the probes of one group, or of all."""
    groups = [g for g in Group if only in (None, g.value)]
    if groups:
        require_rights()
    checks = run_probes(groups)
    if any(c.id == "bpf_syscall" and c.state is State.UNKNOWN for c in checks):
        raise pins.refused("cannot probe: bpf(2)", "bpf(2)")
    name = os.uname()
    possible = not obstacles(checks)
    return DoctorReport(
        ok=possible,
        capture=None if only and possible else possible,
        kernel=name.release,
        machine=name.machine,
        cgroup2=_cgroup2(),
        lockdown=lockdown(),
        nodenet=__version__,
        rooms=rooms(),
        checks=checks,
    )


def _cgroup2() -> str | None:
    try:
        return str(cgroups.cgroup2_mount())
    except cgroups.Cgroup2Missing:
        return None


def render(report: DoctorReport, style: Style, only: str | None = None) -> str:
    """The screen: a line on the host, a line a group with what is wrong below, the result."""
    head = [
        f"nodenet {report.nodenet}",
        f"kernel {report.kernel} {report.machine}",
        f"cgroup2 at {report.cgroup2}" if report.cgroup2 else "no cgroup2",
        f"lockdown {report.lockdown}",
    ]
    text = style.joined(head) + "\n"
    for group in Group:
        checks = [c for c in report.checks if c.group is group]
        if checks:
            text += _group_line(group, checks) + "\n" + _rows(checks, style)
    if only in (None, ROOMS):
        found = [f"{name} {'yes' if there else 'no'}" for name, there in report.rooms.items()]
        text += f"{ROOMS:10} {style.joined(found)}\n"
    return text + (result_line(report) + "\n" if report.checks else "")


def _group_line(group: Group, checks: Sequence[Check]) -> str:
    good = sum(c.state is State.OK for c in checks)
    counted = f"{group.value:10} {good} of {len(checks)}"
    if good < len(checks):
        return counted
    remark = _GIVES.get(group) or next((c.means for c in checks if c.id == "programs"), "")
    return f"{counted + ' ok':26} {remark}".rstrip()


def _rows(checks: Sequence[Check], style: Style) -> str:
    """The features that cost the user something; all of them with -o wide."""
    shown = [c for c in checks if style.wide or c.state is not State.OK]
    if not shown:
        return ""
    inner = replace(style, width=style.width - 2 if style.width else None)
    return "".join(f"  {line}\n" for line in render_table(shown, COLUMNS, inner).splitlines())


def result_line(report: DoctorReport) -> str:
    """``Result: capture works. 1 thing degraded.``"""
    if report.capture is None:
        verdict = "nothing here keeps capture from working."
    else:
        verdict = "capture works." if report.capture else "capture cannot work."
    counted = [
        f"{number} thing{'' if number == 1 else 's'} {state.value}"
        for state in (State.MISSING, State.DEGRADED, State.UNKNOWN)
        if (number := sum(c.state is state for c in report.checks))
    ]
    return " ".join([f"Result: {verdict}", *([", ".join(counted) + "."] if counted else [])])


def fix_hints(report: DoctorReport) -> str:
    """One line a feature that is not there: what to do, in full."""
    return "".join(
        f"{c.feature}: {c.fix}\n" for c in report.checks if c.state is not State.OK and c.fix
    )


def obstacle(report: DoctorReport) -> NodenetError | None:
    """The error that a run ends with when capture cannot work."""
    found = obstacles(report.checks)
    if not found:
        return None
    if any(c.id == "cgroup2_mount" for c in found):
        try:
            cgroups.cgroup2_mount()
        except cgroups.Cgroup2Missing as missing:
            return missing
    first = next((c for c in found if c.group is Group.CAPTURE), found[0])
    iptables = all(c.state is State.OK for c in report.checks if c.group is Group.IPTABLES)
    return CaptureImpossible(first, report.lockdown, iptables)


@object_command(
    "doctor", epilog="Examples: sudo nodenet doctor; sudo nodenet doctor -o wide --only capture"
)
@click.option("--fix-hints", "hints", is_flag=True, help="Only what to do, a line a feature.")
@click.option(
    "--only", type=OneOf("group", [*(g.value for g in Group), ROOMS]), help="Only this group."
)
@pass_globals
def command(g: Globals, hints: bool, only: str | None) -> None:
    """What this kernel and host can do, found by trying.

    Probes programs, maps and attach points on a cgroup and a namespace of its own, and leaves
    nothing. Lists what costs you something; -o wide lists all, -q only the result. Exit 3 when the
    eBPF capture cannot work here.
    """

    def screen(report: DoctorReport, style: Style) -> str:
        if hints:
            return fix_hints(report)
        return result_line(report) if g.quiet else render(report, style, only)

    report = emit_report(g, examine(only), screen)
    error = obstacle(report)
    if error is not None:
        raise error
