"""nodenet konnectivity: reverse tunnels from a control plane into a cluster."""

from __future__ import annotations

from nodenet.cli.commands import object_group
from nodenet.cli.konnectivity_agent import agent
from nodenet.cli.konnectivity_curl import curl
from nodenet.cli.konnectivity_server import server
from nodenet.cli.konnectivity_show import show


@object_group("konnectivity", epilog="Example: nodenet konnectivity agent --ca-cert=ca.crt")
def command() -> None:
    """Reverse tunnels, in place of the apiserver-network-proxy."""


command.add_command(server)
command.add_command(agent)
command.add_command(show)
command.add_command(curl)
