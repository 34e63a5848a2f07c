"""nodenet konnectivity server: gives frontends tunnels through the agents that dialled in."""

from __future__ import annotations

import click

from nodenet.agents.konnectivity.server_config import FLAGS
from nodenet.cli.globals import Globals, pass_globals
from nodenet.cli.go_verb import GoVerb


@click.command(
    "server",
    cls=GoVerb,
    flags=FLAGS,
    short_help="Give the control plane tunnels through the agents.",
    epilog="Example: nodenet konnectivity server --mode=grpc --uds-name=/run/konnectivity.sock "
    "--server-port=0 --cluster-cert=tls.crt --cluster-key=tls.key --cluster-ca-cert=ca.crt",
)
@pass_globals
def server(g: Globals, arguments: tuple[str, ...]) -> int:
    """Carry the connections of kube-apiserver to agents, until told to end.

    In place of the Go binary proxy-server, with its flags. Prints READY on stderr when all ports
    are served. The first SIGTERM drains, the second one ends at once.
    """
    from nodenet.agents.konnectivity import server_config

    config = server_config.load(arguments, g.environ)
    if config.ignored:
        g.notice(f"klog's flags mean nothing here: {' '.join(config.ignored)}")
    for notice in config.notices:
        g.notice(notice)
    if not g.verbose:
        import logging

        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=form)
    from nodenet.agents.konnectivity import server_process
    from nodenet.agents.konnectivity.start_failures import with_flags

    with with_flags(config):
        return server_process.run(config, g.own_instance)
