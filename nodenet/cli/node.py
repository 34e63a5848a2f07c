"""nodenet node: the agent of this node."""

from __future__ import annotations

from pathlib import Path

import click

from nodenet.cli.commands import object_group
from nodenet.cli.globals import Globals, pass_globals


@object_group("node", epilog="Example: nodenet node run --enroll netns:/run/netns/web")
def command() -> None:
    """The agent that keeps the capture loaded on this node."""


@command.command("run")
@click.option("--enroll", multiple=True, metavar="TARGET", help="Pod to enrol at start.")
@click.option(
    "--agent-cgroup",
    type=click.Path(path_type=Path),
    help="The proxy's cgroup (default: nodenet/ztunnel below the cgroup2 mount).",
)
@click.option("--upgrade-pins", is_flag=True, help="Rebuild pins of another schema.")
@pass_globals
def run(g: Globals, enroll: tuple[str, ...], agent_cgroup: Path | None, upgrade_pins: bool) -> None:
    """Load the capture, forget pods that vanished, restore lost ones; until SIGTERM."""
    import logging

    from nodenet.agents.node import agent

    if not g.verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    stays = agent.run(
        agent.NodeConfig(
            instance=g.instance,
            enroll=enroll,
            agent_cgroup=agent_cgroup,
            upgrade_pins=upgrade_pins,
        )
    )
    if stays is None:
        g.notice(f"nothing is captured: instance {g.instance.name} was removed")
    else:
        g.notice(f"capture stays (pinned), {stays} pods; to remove: nodenet capture unenroll --all")
