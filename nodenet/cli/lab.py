"""nodenet lab: nodes and pods as namespaces of this machine, a mesh, proved, and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from nodenet.cli import numbers
from nodenet.cli.commands import object_group
from nodenet.cli.complete import completer
from nodenet.cli.globals import Globals, pass_globals, report_options
from nodenet.cli.output import emit_report
from nodenet.cli.params import COUNT
from nodenet.cli.style import Style
from nodenet.cli.tables import Column, Elide, render_table
from nodenet.paths import LAB_ID, Instance

if TYPE_CHECKING:
    from nodenet.lab.state import LabDir
    from nodenet.lab.status import LabStatus, PodStatus


@object_group("lab", epilog="Example: sudo nodenet lab up && sudo nodenet lab demo")
def command() -> None:
    """Nodes and pods in namespaces of this machine.

    Nothing outside of namespaces that it makes is touched, and `lab down` leaves nothing.
    """


class UpReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``lab up``."""

    ok: bool
    lab: str
    id: str
    already: bool
    nodes: int
    pods: int
    enrolled: int
    backend: str
    mesh: bool
    seconds: float


class RemovedLab(msgspec.Struct, frozen=True, kw_only=True):
    """One lab that was removed."""

    lab: str
    namespaces: int
    processes: int


class DownReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``lab down``."""

    ok: bool
    removed: tuple[RemovedLab, ...]


def _pods(_instance: Instance) -> list[str]:
    from nodenet.lab.state import pod_places

    return sorted({_short(place.name) for place in pod_places()})


@command.command("up")
@click.option(
    "--nodes", type=COUNT, metavar="N", default=2, show_default=True, help="Number of nodes."
)
@click.option(
    "--pods", type=COUNT, metavar="N", default=2, show_default=True, help="Pods on each node."
)
@click.option(
    "--family",
    type=click.Choice(["4", "6", "both"]),
    default="both",
    show_default=True,
    help="Addresses of the pods.",
)
@click.option(
    "--backend",
    type=click.Choice(["ebpf", "iptables"]),
    default="ebpf",
    show_default=True,
    help="What captures the first pod of each node.",
)
@click.option(
    "--net",
    metavar="A.B.0.0/16",
    default="10.77.0.0/16",
    show_default=True,
    help="Address range; IPv6 follows from it.",
)
@click.option("--plain", is_flag=True, help="No mesh: the proxies pass plaintext on.")
@click.option("--keep-on-error", is_flag=True, help="Leave what was made when something fails.")
@pass_globals
def up(
    g: Globals,
    nodes: int,
    pods: int,
    family: str,
    backend: Any,
    net: str,
    plain: bool,
    keep_on_error: bool,
) -> None:
    """Make the lab; a second time nothing is done."""
    from nodenet.cli.progress import Steps
    from nodenet.lab.plan import Family, make_plan
    from nodenet.lab.up import STEP_COUNT
    from nodenet.lab.up import up as make

    plan = make_plan(
        instance_id=_lab_id(g),
        nodes=nodes,
        pods=pods,
        family=Family(family),
        backend=backend,
        net=net,
        mesh=not plain,
    )
    done = make(
        plan, _directory(g), Steps(g, STEP_COUNT), keep_on_error=keep_on_error, notice=g.notice
    )
    report = UpReport(
        ok=True,
        lab=plan.lab,
        id=plan.instance_id,
        already=done.already,
        nodes=len(plan.nodes),
        pods=len(plan.pods),
        enrolled=sum(pod.enrolled for pod in plan.pods),
        backend=plan.backend,
        mesh=plan.mesh,
        seconds=round(done.seconds, 3),
    )
    emit_report(g, report, lambda found, _: _up_text(found))


@command.command("down")
@click.option("--all", "every", is_flag=True, help="Every lab of this machine.")
@pass_globals
def down(g: Globals, every: bool) -> None:
    """Remove the lab, up or half made; leave nothing."""
    from nodenet.lab.down import down as remove
    from nodenet.lab.state import LabDir, every_lab

    labs = [LabDir(name) for name in every_lab()] if every else [_directory(g)]
    done = [remove(d, lambda: g.notice("waiting for another lab command")) for d in labs]
    removed = tuple(
        RemovedLab(lab=r.lab, namespaces=r.namespaces, processes=r.processes) for r in done if r
    )
    emit_report(g, DownReport(ok=True, removed=removed), lambda found, _: _down_text(found))


def _down_text(report: DownReport) -> str:
    lines = [
        f"lab {one.lab} removed: {one.namespaces} namespaces, {one.processes} processes; "
        "nothing is left (checked)"
        for one in report.removed
    ]
    return "\n".join(lines or ["no lab is up, nothing to do"])


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _workload(pod: PodStatus) -> str:
    return pod.workload if pod.workload_pid else f"{pod.workload} down"


_STATUS_COLUMNS = (
    Column("POD", "pod", max=16, elide=Elide.MIDDLE, value=lambda p: _short(p.pod)),
    Column("NODE", "node", max=8),
    Column("IPV4", "ipv4"),
    Column("IPV6", "ipv6"),
    Column("ENROLLED", "enrolled", max=8),
    Column("WORKLOAD", "workload", max=16, value=_workload),
    Column("UP", "up_s", numbers.age, right=True),
    Column("IDENTITY", "identity", wide=True),
    Column("NETNS", "netns", wide=True),
    Column("COOKIE", "netns_cookie", wide=True, right=True),
    Column("PID", "workload_pid", wide=True, right=True),
)


@command.command("status")
@report_options
@pass_globals
def status(g: Globals) -> None:
    """The pods of the lab, and whether it is in working order."""
    from nodenet.errors import NodenetError
    from nodenet.lab.status import status as look

    directory = _directory(g)

    def render(found: LabStatus, style: Style) -> str:
        return render_table(found.pods, _STATUS_COLUMNS, style)

    found = emit_report(g, lambda: look(directory), render)
    if not found.ok:
        raise NodenetError(
            f"lab {found.lab} is not as it was made: {found.problems[0]}",
            hint="make it again: sudo nodenet lab up",
        )


@command.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("pod", shell_complete=completer(_pods))
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@pass_globals
def execute(g: Globals, pod: str, cmd: tuple[str, ...]) -> None:
    """Run a command inside a pod (or a node); names of pods resolve there."""
    from nodenet.errors import UsageError
    from nodenet.lab.execute import execute as become

    if cmd[0].startswith("-") and cmd[0] != "--":
        raise UsageError(
            f"{cmd[0]} is no command", hint="nodenet's options stand before POD, CMD behind --"
        )
    argv = cmd[1:] if cmd[0] == "--" else cmd
    if not argv:
        raise UsageError("no command to run", hint=f"e.g. nodenet lab exec {pod} -- ip addr")
    become(_directory(g), pod, argv)


@command.command("demo")
@click.option(
    "--requests",
    type=COUNT,
    metavar="N",
    default=3,
    show_default=True,
    help="Connections of each pair.",
)
@click.option(
    "--pairs",
    metavar="a1:b2",
    multiple=True,
    help="Only these; commas or repeated; also a1:a2:8081, a1:web.lab.",
)
@report_options
@pass_globals
def demo(g: Globals, requests: int, pairs: tuple[str, ...]) -> None:
    """Let the pods talk, and prove what was captured, encrypted and denied, and what was not."""
    from nodenet.cli.lab_demo import demo_text
    from nodenet.lab.demo import check
    from nodenet.lab.demo import demo as run

    directory = _directory(g)
    found = emit_report(g, lambda: run(directory, requests=requests, chosen=pairs), demo_text)
    check(found)


def _up_text(report: UpReport) -> str:
    if report.already:
        return f"lab already up ({report.pods} pods), nothing to do\n"
    how = f"{report.backend}{', hbone' * report.mesh}"
    return (
        f"lab up: {report.nodes} nodes, {report.pods} pods, {report.enrolled} of them enrolled "
        f"({how}), {report.seconds:.1f} s; next: nodenet lab demo\n"
    )


def _lab_id(g: Globals) -> str:
    """Which lab: ``--id``, NODENET_ID, else the default one; never the host's instance."""
    return g.id or g.environ.get("NODENET_ID") or LAB_ID


def _directory(g: Globals) -> LabDir:
    from nodenet.lab.plan import lab_name
    from nodenet.lab.state import LabDir

    return LabDir(lab_name(Instance(_lab_id(g)).id or LAB_ID))
