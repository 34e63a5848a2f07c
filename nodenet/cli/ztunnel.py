"""nodenet ztunnel: the proxy of a node."""

from __future__ import annotations

import click

from nodenet.cli.commands import object_group
from nodenet.cli.globals import Globals, pass_globals


@object_group("ztunnel", epilog="Example: nodenet ztunnel run --access-log")
def command() -> None:
    """The proxy that carries the connections of enrolled pods."""


@command.command("run")
@click.option("--node", metavar="NAME", help="Serve the pods of this node; NODE_NAME.")
@click.option("--cgroup", metavar="PATH", help="Cgroup to join instead of the instance's own.")
@click.option("--max-connections", type=int, metavar="N", help="Of one pod at a time (65536).")
@click.option(
    "--connect-timeout", "connect_seconds", type=float, metavar="SECONDS", help="Of a dial (10)."
)
@click.option(
    "--drain",
    "drain_seconds",
    type=float,
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
