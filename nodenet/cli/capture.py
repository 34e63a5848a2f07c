"""nodenet capture: pods whose connections are redirected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from nodenet.cli import complete, numbers
from nodenet.cli.commands import object_group
from nodenet.cli.globals import Globals, list_options, pass_globals, report_options
from nodenet.cli.output import emit_list, emit_report
from nodenet.cli.params import OneOf, SecondsType
from nodenet.cli.tables import Column, Elide
from nodenet.errors import NotFound, NotSupported, UsageError

if TYPE_CHECKING:
    from nodenet.capture.records import PodRecord
    from nodenet.capture.session import Capture
    from nodenet.capture.show import PodState
    from nodenet.cli.capture_reports import UnenrolReport
    from nodenet.lab.state import PodPlace


@object_group(
    "capture",
    aliases={"list": "show", "enrol": "enroll", "unenrol": "unenroll"},
    epilog="Example: nodenet capture enroll shop/cart --exclude-port out:9093",
)
def command() -> None:
    """Pods whose connections are redirected to the local proxy."""


def _excluded(row: PodState) -> str | None:
    found = [f"{p.dir}:{p.port}" for p in row.exclude_ports] + list(row.exclude_cidrs)
    return ",".join(found) or None


def _listeners(row: PodState) -> str:
    if row.backend == "iptables" and not any(entry.alive for entry in row.listeners):
        return "-"
    down = [str(entry.port) for entry in row.listeners if not entry.alive]
    return f"{','.join(down)} down" if down else "ok"


def _age(row: PodState) -> float:
    import datetime

    then = datetime.datetime.fromisoformat(row.enrolled_at)
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds()


COLUMNS = (
    Column("POD", "pod", max=32, elide=Elide.MIDDLE),
    Column("BACKEND", "backend"),
    Column("DIR", "direction"),
    Column("DNS", "dns", lambda v, _exact: "on" if v else "off"),
    Column("ON-DOWN", "on_proxy_down"),
    Column("EXCLUDED", "exclude_ports", max=24, elide=Elide.END, value=_excluded),
    Column("LISTENERS", "listeners", max=24, value=_listeners, state=True),
    Column("OUT", "counters", numbers.count, right=True, value=lambda r: r.counters.captured_out),
    Column("IN", "counters", numbers.count, right=True, value=lambda r: r.counters.captured_in),
    Column("BYPASS", "counters", numbers.count, right=True, value=lambda r: r.counters.bypassed),
    Column("REFUSED", "counters", numbers.count, right=True, value=lambda r: r.counters.refused),
    Column("AGE", "enrolled_at", numbers.age, right=True, value=_age),
    Column("INODE", "netns_inode", wide=True),
    Column("COOKIE", "netns_cookie", wide=True),
    Column("IPS", "ips", wide=True),
    Column("NETNS", "netns", wide=True),
)


def _open(g: Globals) -> Capture:
    from nodenet.capture.session import Capture

    instance = g.instance
    if not instance.exists() and instance.pods.is_dir():
        return Capture.without_bpf(instance)
    return Capture.open(instance)


def _chosen(capture: Capture, targets: tuple[str, ...]) -> list[PodRecord]:
    """The enrolled pods that the TARGETs name; all without one."""
    from nodenet.capture.targets import resolve_target
    from nodenet.lab.state import pod_places

    records = list(capture.records())
    if not targets:
        return records
    chosen = []
    places = {place.name: place.netns for place in pod_places(capture.instance)}
    for target in targets:
        record = resolve_target(target, records, places).record
        if record is None:
            raise NotFound(
                f"{target} is not enrolled", hint=f"run: nodenet capture enroll {target}"
            )
        chosen.append(record)
    return chosen


@command.command("show")
@click.argument("target", nargs=-1, shell_complete=complete.pods)
@click.option("--counters", is_flag=True, help="One column per decision row.")
@list_options
@pass_globals
def show(g: Globals, target: tuple[str, ...], counters: bool) -> None:
    """Enrolled pods: options, listeners, counters."""
    from nodenet.capture.show import PodState, pod_states

    with _open(g) as capture:
        maps = capture.maps if capture.has_bpf else None

        def rows() -> list[PodState]:
            return pod_states(maps, _chosen(capture, target))

        columns: tuple[Column, ...] = COLUMNS
        if counters:
            names = sorted({name for row in rows() for name in row.counters.rows})
            columns = (COLUMNS[0], *(_counter_column(name) for name in names))
        emit_list(g, rows, columns, row_type=PodState, name="pod", empty="no pod is enrolled")


def _counter_column(name: str) -> Column:
    return Column(
        name.upper().replace(" ", "-"),
        "counters",
        numbers.count,
        right=True,
        value=lambda row: row.counters.rows.get(name, 0),
    )


@command.command("enroll")
@click.argument("target", nargs=-1, required=True, shell_complete=complete.targets)
@click.option("--backend", type=OneOf("backend", ("auto", "ebpf", "iptables")), default="auto")
@click.option("--dns", type=OneOf("value", ("on", "off")), default="off", help="Capture port 53.")
@click.option("--direction", type=OneOf("direction", ("both", "out", "in")), default="both")
@click.option("--exclude-port", multiple=True, metavar="DIR:PORT,…", help="out:9093,in:8081")
@click.option("--exclude-cidr", multiple=True, metavar="CIDR,…", help="Outbound destinations.")
@click.option(
    "--on-proxy-down",
    type=OneOf("value", ("closed", "open")),
    default="closed",
    help="New connections while the proxy does not listen: refused, or passed uncaptured.",
)
@click.option(
    "--existing",
    type=OneOf("value", ("keep", "reset")),
    default="keep",
    help="Connections older than the enrolment.",
)
@click.option("--mode", type=OneOf("mode", ("pod", "ingress")), default="pod")
@click.option("--node", metavar="NAME", help="The node whose proxy serves the pod.")
@click.option(
    "--wait", type=SecondsType(), default="5s", help="How long to wait for the proxy's listeners."
)
@click.option("--dry-run", is_flag=True, help="Print the map writes, do nothing.")
@pass_globals
def enroll(
    g: Globals,
    target: tuple[str, ...],
    backend: Any,
    dns: str,
    direction: Any,
    exclude_port: tuple[str, ...],
    exclude_cidr: tuple[str, ...],
    on_proxy_down: Any,
    existing: Any,
    mode: Any,
    node: str | None,
    wait: float,
    dry_run: bool,
) -> None:
    """Redirect the connections of these pods to the proxy."""
    from nodenet.capture.options import EnrolOptions, parse_cidrs, parse_excluded_ports
    from nodenet.cli import capture_reports as view

    options = EnrolOptions(
        backend=backend,
        direction=direction,
        dns=dns == "on",
        exclude_ports=parse_excluded_ports(exclude_port),
        exclude_cidrs=parse_cidrs(exclude_cidr),
        on_proxy_down=on_proxy_down,
        existing=existing,
        mode=mode,
    )
    from nodenet.capture.records import read_records
    from nodenet.capture.targets import resolve_target

    records = list(read_records(g.instance))
    lab = {place.name: place for place in _lab_pods(g)}
    places = {name: place.netns for name, place in lab.items()}
    found = [resolve_target(text, records, places) for text in target]
    if dry_run:
        from nodenet.capture.plan import planned_writes

        emit_report(
            g,
            msgspec.convert(planned_writes(found, options), view.EnrolPlan),
            lambda report, _style: report.text,
        )
        return
    done = []
    with _load(g, options.backend) as capture:
        for one in found:
            known = one.record
            result = capture.enroll(
                one.netns_path,
                name=one.name,
                node=node
                or (known.node if known else lab[one.name].node if one.name in lab else None),
                node_id=_node_id(known, lab.get(one.name)),
                uid=known.uid if known else None,
                options=options,
                wait=wait,
            )
            done.append(view.enrolled_pod(result))
    emit_report(g, view.EnrolReport(ok=True, pods=tuple(done)), view.enrolled_text)


def _node_id(known: PodRecord | None, place: PodPlace | None) -> int:
    if known is not None:
        return known.node_id
    return place.node_number if place is not None else 0


def _lab_pods(g: Globals) -> list[PodPlace]:
    """The pods of the lab behind this instance, so that they can be named before they are in."""
    from nodenet.lab.state import pod_places

    return list(pod_places(g.instance))


def _load(g: Globals, backend: str) -> Capture:
    from nodenet.capture.session import Capture

    try:
        return Capture.open_or_load(g.instance)
    except NotSupported as error:
        if backend == "ebpf":
            raise
        g.notice(f"{error.line()}; using the iptables backend, without statistics")
        return Capture.without_bpf(g.instance)


@command.command("unenroll")
@click.argument("target", nargs=-1, shell_complete=complete.pods)
@click.option("--all", "everything", is_flag=True, help="Every pod, and detach the programs.")
@click.option("--existing", type=OneOf("value", ("keep", "reset")), default="keep")
@pass_globals
def unenroll(g: Globals, target: tuple[str, ...], everything: bool, existing: Any) -> None:
    """Stop redirecting: the pods' next connections are not captured."""
    if everything == bool(target):
        raise UsageError("unenroll takes TARGETs or --all; see: nodenet capture show")
    from nodenet.cli import capture_reports as view

    if everything:
        emit_report(g, _remove_all(g, existing), view.removed_text)
        return
    done = []
    with _open(g) as capture:
        for record in _chosen(capture, target):
            result = capture.unenroll(record.netns_cookie, existing=existing)
            done.append(
                view.RemovedPod(
                    pod=result.name,
                    existing=result.existing,
                    existing_reset=result.existing_reset,
                    routes_kept=result.routes_kept,
                )
            )
    report = view.UnenrolReport(ok=True, pods=tuple(done), detached=False)
    emit_report(g, report, view.removed_text)


def _remove_all(g: Globals, existing: Any) -> UnenrolReport:
    from nodenet.capture.session import remove_instance
    from nodenet.cli.capture_reports import RemovedPod, UnenrolReport

    instance = g.instance
    if not instance.pins.is_dir() and not instance.pods.is_dir():
        raise NotFound(f"nothing is enrolled: no {instance.pins}; see: nodenet doctor")
    if existing == "reset":
        with _open(g) as capture:
            for record in list(capture.records()):
                capture.unenroll(record.netns_cookie, existing="reset")
    removed = remove_instance(instance)
    pods = tuple(
        RemovedPod(pod=r.name, existing=None, existing_reset=0, routes_kept=False) for r in removed
    )
    return UnenrolReport(ok=True, pods=pods, detached=True)


@command.command("verify")
@click.argument("target", nargs=-1, shell_complete=complete.pods)
@click.option("--probe", is_flag=True, help="Also by real connections of the pod and the node.")
@click.option("--timeout", type=SecondsType(), default="5s", help="Deadline of each probe.")
@report_options
@pass_globals
def verify_(g: Globals, target: tuple[str, ...], probe: bool, timeout: float) -> int:
    """Check that the redirect is in place, now; exit 1 when not."""
    from nodenet.capture.verify import verify
    from nodenet.cli.capture_reports import VerifyReport, verified_text

    def look() -> VerifyReport:
        pods = tuple(
            verify(capture.instance, maps, record, probe_seconds=timeout if probe else None)
            for record in chosen
        )
        return VerifyReport(ok=all(pod.ok for pod in pods), pods=pods)

    with _open(g) as capture:
        maps = capture.maps if capture.has_bpf else None
        chosen = _chosen(capture, target)
        if not chosen:
            raise NotFound("no pod is enrolled: nothing to verify; see: nodenet capture enroll -h")
        report = emit_report(g, look, verified_text)
    return 0 if report.ok else 1


@command.command("explain")
@click.argument("src", shell_complete=complete.pods)
@click.argument("dst", metavar="DST:PORT")
@click.option("--in", "inbound", is_flag=True, help="As seen by DST: a SYN that arrives from SRC.")
@click.option("--udp", is_flag=True, help="A datagram instead of a connection.")
@click.option("--proxy", is_flag=True, help="As the proxy's own socket.")
@click.option(
    "--expect",
    type=OneOf("result", ("captured", "bypassed", "refused", "mtls", "plain", "denied")),
    metavar="RESULT",
    help="Exit 1 when the answer is another one than captured, bypassed, refused; mtls, plain, "
    "denied as ztunnel tells.",
)
@pass_globals
def explain(
    g: Globals,
    src: str,
    dst: str,
    inbound: bool,
    udp: bool,
    proxy: bool,
    expect: str | None,
) -> None:
    """What would happen to one connection, row by row. Nothing is sent.

    First the kernel's rows; when it is captured, those of the proxy and of its far side too.
    """
    from nodenet.cli import capture_explain as view

    with _open(g) as capture:
        found = view.explained(
            g, capture, src, dst, inbound=inbound, protocol="udp" if udp else "tcp", proxy=proxy
        )
    emit_report(g, found, view.render)
    if expect is not None:
        view.check(found, src, dst, expect)
