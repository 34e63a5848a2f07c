"""nodenet konnectivity agent: carries dials from the servers into this network."""

from __future__ import annotations

import click

from nodenet.agents.konnectivity.agent_config import FLAGS
from nodenet.cli.globals import Globals, pass_globals
from nodenet.cli.go_verb import GoVerb


@click.command(
    "agent",
    cls=GoVerb,
    flags=FLAGS,
    short_help="Carry dials from the servers into this network.",
    epilog="Example: nodenet konnectivity agent --ca-cert=ca.crt --proxy-server-host=10.0.0.1",
)
@pass_globals
def agent(g: Globals, arguments: tuple[str, ...]) -> int:
    """Connect to every server and dial for them until told to end.

    In place of the Go binary proxy-agent, with its flags. Prints READY on stderr when health is
    served. The first SIGTERM drains, the second one ends at once.
    """
    from nodenet.agents.konnectivity import agent_config

    config = agent_config.load(arguments, g.environ)
    if config.ignored:
        g.notice(f"klog's flags mean nothing here: {' '.join(config.ignored)}")
    if not g.verbose:
        import logging

        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=form)
    from nodenet.agents.konnectivity import agent as process
    from nodenet.agents.konnectivity.start_failures import with_flags

    with with_flags(config):
        return process.run(config, g.own_instance, environ=g.environ)
