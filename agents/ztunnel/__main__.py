"""``python -m nodenet.agents.ztunnel run …``: the proxy without the command line around it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from nodenet.agents.ztunnel import config, supervisor
from nodenet.errors import NodenetError


def parser() -> argparse.ArgumentParser:
    """The options, each named as in ``nodenet ztunnel run``."""
    made = argparse.ArgumentParser(prog="python -m nodenet.agents.ztunnel", allow_abbrev=False)
    verbs = made.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="serve the pods of one node until SIGTERM")
    run.add_argument("--id", dest="instance", metavar="ID")
    run.add_argument("--node", metavar="NAME")
    run.add_argument("--cgroup", metavar="PATH")
    run.add_argument("--max-connections", type=int, metavar="N")
    run.add_argument("--connect-timeout", dest="connect_seconds", type=float, metavar="SECONDS")
    run.add_argument("--drain", dest="drain_seconds", type=float, metavar="SECONDS")
    run.add_argument("--access-log", action=argparse.BooleanOptionalAction)
    run.add_argument("--mesh", metavar="FILE")
    run.add_argument("--embedded-ca", metavar="DIRECTORY")
    run.add_argument("--network", metavar="NAME")
    for surface in ("admin", "stats", "readiness"):
        run.add_argument(f"--{surface}", metavar="ADDRESS:PORT")
    run.add_argument("--log-level", metavar="FILTER")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the proxy; the exit status, an error being one line on stderr."""
    options = vars(parser().parse_args(argv))
    del options["verb"]
    try:
        supervisor.run(config.load(os.environ, **options))
    except NodenetError as error:
        print(f"nodenet: {error.line()}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
