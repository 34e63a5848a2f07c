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
@click.option("--access-log", is_flag=True, help="One line for each connection that has ended.")
@click.option("--log-level", metavar="LEVEL", help="debug, info (default), warning, error.")
@pass_globals
def run(
    g: Globals,
    node: str | None,
    cgroup: str | None,
    max_connections: int | None,
    connect_seconds: float | None,
    drain_seconds: float | None,
    access_log: bool,
    log_level: str | None,
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
        ),
        g.environ,
    )
