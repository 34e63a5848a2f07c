"""nodenet ztunnel: the proxy of a node."""

from __future__ import annotations

from typing import Unpack

import click

from nodenet.cli import complete
from nodenet.cli.commands import object_group
from nodenet.cli.globals import Format, Globals, list_options, pass_globals, report_options
from nodenet.cli.output import emit_list, emit_report
from nodenet.cli.params import COUNT, OneOf, SecondsType
from nodenet.cli.ztunnel_ask import Asked, AskOptions, asking
from nodenet.errors import UsageError

_NAMESPACE = click.option("-n", "--namespace", metavar="NS", help="Only of this namespace.")


#: istioctl's short forms that are no prefixes.
_SHORT = {"svc": "services", "wl": "workloads", "pod": "workloads"}


@object_group("ztunnel", aliases=_SHORT, epilog="Example: nodenet ztunnel connections -n shop")
def command() -> None:
    """The proxy that carries the connections of enrolled pods: run it, ask it."""


def _none(what: str, namespace: str | None) -> str:
    """The notice for an empty list: of all, or only of the namespace that was asked for."""
    return f"no {what}" if namespace is None else f"no {what.split()[0]} in namespace {namespace}"


@command.command("run")
@click.option("--node", metavar="NAME", help="Serve the pods of this node; NODE_NAME.")
@click.option("--cgroup", metavar="PATH", help="Cgroup to join instead of the instance's own.")
@click.option("--max-connections", type=COUNT, metavar="N", help="Of one pod at a time (65536).")
@click.option(
    "--connect-timeout",
    "connect_seconds",
    type=SecondsType(),
    metavar="SECONDS",
    help="Of a dial (10).",
)
@click.option(
    "--drain",
    "drain_seconds",
    type=SecondsType(),
    metavar="SECONDS",
    help="For open connections at the end (5).",
)
@click.option(
    "--access-log/--no-access-log",
    default=None,
    help="One line for each connection that has ended; on in a mesh.",
)
@click.option(
    "--log-level",
    metavar="FILTER",
    help="off, error, warn, info (default), debug; info,access=off; RUST_LOG.",
)
@click.option("--mesh", metavar="FILE", help="Static mesh; LOCAL_XDS_PATH.")
@click.option("--embedded-ca", metavar="DIRECTORY", help="Keys and certificates made here.")
@click.option("--network", metavar="NAME", help="This cluster's network; NETWORK.")
@click.option("--admin", metavar="ADDRESS:PORT", help="localhost:15000; '' for none.")
@click.option("--stats", metavar="ADDRESS:PORT", help="Metrics, *:15020; '' for none.")
@click.option("--readiness", metavar="ADDRESS:PORT", help="Probe, *:15021; '' for none.")
@pass_globals
def run(
    g: Globals,
    node: str | None,
    cgroup: str | None,
    max_connections: int | None,
    connect_seconds: float | None,
    drain_seconds: float | None,
    access_log: bool | None,
    log_level: str | None,
    mesh: str | None,
    embedded_ca: str | None,
    network: str | None,
    admin: str | None,
    stats: str | None,
    readiness: str | None,
) -> None:
    """Serve the enrolled pods of this node until SIGTERM.

    Prints READY on stderr when the pods enrolled now are served. Needs root and an instance that
    is loaded (capture enroll does that).
    """
    from nodenet.agents.ztunnel import config, supervisor

    supervisor.run(
        config.load(
            g.environ,
            instance=g.id,
            node=node,
            cgroup=cgroup,
            max_connections=max_connections,
            connect_seconds=connect_seconds,
            drain_seconds=drain_seconds,
            access_log=access_log,
            log_level=log_level or ("debug" if g.verbose else None),
            mesh=mesh,
            embedded_ca=embedded_ca,
            network=network,
            admin=admin,
            stats=stats,
            readiness=readiness,
        ),
        g.environ,
    )


@command.command("config")
@asking()
@pass_globals
def config(g: Globals, **options: Unpack[AskOptions]) -> None:
    """One screen about the proxy; -j is its dump as it is."""
    from nodenet.cli.ztunnel_config import show

    show(g, Asked(g, options))


@command.command("workloads")
@click.argument("pod", required=False, shell_complete=complete.pods)
@_NAMESPACE
@asking(istio=True)
@list_options
@pass_globals
def workloads(
    g: Globals, pod: str | None, namespace: str | None, **options: Unpack[AskOptions]
) -> None:
    """Who is in the mesh, as the proxy knows it."""
    from nodenet.cli import ztunnel_workloads as view

    asked = Asked(g, options)
    emit_list(
        g,
        lambda: view.rows(asked, namespace, pod),
        view.COLUMNS,
        row_type=None if asked.istio else view.WorkloadRow,
        name="uid",
        empty=_none("workloads are known", namespace),
    )


@command.command("services")
@click.argument("name", required=False)
@_NAMESPACE
@asking(istio=True)
@list_options
@pass_globals
def services(
    g: Globals, name: str | None, namespace: str | None, **options: Unpack[AskOptions]
) -> None:
    """What can be addressed, and how many answer."""
    from nodenet.cli import ztunnel_services as view

    asked = Asked(g, options)
    emit_list(
        g,
        lambda: view.rows(asked, namespace, name),
        view.COLUMNS,
        row_type=None if asked.istio else view.ServiceRow,
        name="key",
        empty=_none("services are known", namespace),
    )


@command.command("policies")
@click.argument("name", required=False)
@_NAMESPACE
@asking(istio=True)
@list_options
@pass_globals
def policies(
    g: Globals, name: str | None, namespace: str | None, **options: Unpack[AskOptions]
) -> None:
    """Who may connect to whom, and how often each policy said so."""
    from nodenet.cli import ztunnel_policies as view

    asked = Asked(g, options)
    emit_list(
        g,
        lambda: view.rows(asked, namespace, name),
        view.COLUMNS,
        row_type=None if asked.istio else view.PolicyRow,
        name="key",
        empty=_none("policies are known: everybody may connect", namespace),
    )


@command.command("certificates")
@click.argument("identity", metavar="[ID]", required=False)
@click.option("--check", "check", is_flag=True, help="Exit 1 unless all are good for a while.")
@asking(istio=True)
@list_options
@pass_globals
def certificates(
    g: Globals, identity: str | None, check: bool, **options: Unpack[AskOptions]
) -> None:
    """Who this node can prove to be, and for how long. -o wide: the chains."""
    from nodenet.cli import ztunnel_certificates as view

    asked = Asked(g, options)
    if check and asked.istio:
        raise UsageError("--check and -o istio do not go together")
    found = view.rows(asked, identity) if check else None
    emit_list(
        g,
        (lambda: view.rows(asked, identity)) if found is None else found,
        view.COLUMNS,
        row_type=None if asked.istio else view.CertificateRow,
        name="identity",
        empty="no certificates: nobody in the mesh runs here",
        render=view.render,
    )
    if found is not None:
        view.check(found)


@command.command("connections")
@click.argument("pod", required=False, shell_complete=complete.pods)
@_NAMESPACE
@click.option("--raw", is_flag=True, help="Peers by address, not by name.")
@asking(istio=True)
@list_options
@pass_globals
def connections(
    g: Globals, pod: str | None, namespace: str | None, raw: bool, **options: Unpack[AskOptions]
) -> None:
    """What the proxy carries now, to whom, how secured, let in by what."""
    from nodenet.cli import ztunnel_connections as view

    asked = Asked(g, options)
    several = asked.live and len(asked.proxies()) > 1
    emit_list(
        g,
        lambda: view.rows(asked, namespace, pod),
        view.columns(raw=raw, nodes=several),
        row_type=None if asked.istio else view.ConnectionRow,
        name="key",
        empty=_none("connections", namespace),
    )


@command.command("log-level")
@click.argument("wanted", metavar="[FILTER]", required=False)
@click.option("--reset", is_flag=True, help="Back to what it was started with.")
@click.option("--for", "seconds", type=SecondsType(), metavar="10m", help="And back afterwards.")
@asking()
@pass_globals
def log_level(
    g: Globals,
    wanted: str | None,
    reset: bool,
    seconds: float | None,
    **options: Unpack[AskOptions],
) -> None:
    """What the proxy logs; with FILTER (info, access=off) changes it at once."""
    from nodenet.cli import ztunnel_log_level as view

    found = view.change(Asked(g, options), wanted, reset=reset, seconds=seconds)
    if g.format in (Format.JSON, Format.YAML) and len(found) == 1:
        emit_report(g, found[0], lambda one, style: view.render([one], style))
    else:
        emit_report(g, found, view.render)


@command.command("explain")
@click.argument("src", shell_complete=complete.pods)
@click.argument("dst", metavar="DST:PORT")
@click.option("--policy", metavar="FILE", help="As if these policies were in force too.")
@click.option(
    "--expect",
    type=OneOf("result", ("mtls", "plain", "denied", "refused")),
    help="Exit 1 when the answer is another one.",
)
@asking()
@report_options
@pass_globals
def explain(
    g: Globals,
    src: str,
    dst: str,
    policy: str | None,
    expect: str | None,
    **options: Unpack[AskOptions],
) -> None:
    """What would happen to a connection from SRC to DST, row by row. Nothing is sent."""
    from nodenet.cli import ztunnel_explain as view

    asked = Asked(g, options)
    found = emit_report(g, lambda: view.answer(asked, src, dst, policy), view.render)
    if expect is not None and found.result != expect:
        raise view.Unexpected(f"{src} to {dst} is {found.result}, not {expect}: row {found.rule}")
