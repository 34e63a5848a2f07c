"""The long runs, which are too long for the suite: ``python -m tests.root.agents.ztunnel.soak``.

``--transfers N``: N random transfers, 16 at a time, while certificates rotate and a policy is
edited; every byte arrives, and the kernel, both logs and both metrics agree.
``--connections N``: N connections opened and closed as fast as it goes; memory, descriptors and
namespaces stay as they are. Prints one line of JSON at the end, exits with 1 when something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.loads import MIB, churn, run_transfers, wait_for_accounts
from tests.root.agents.ztunnel.meshed import Meshed
from tests.root.world import loaded_capture


@contextlib.contextmanager
def meshed(**variables: str) -> Iterator[Meshed]:
    """A mesh of two pods whose proxies have these variables."""
    os.environ.update(variables)
    with (
        loaded_capture() as capture,
        Topology() as topology,
        tempfile.TemporaryDirectory(prefix="nodenet-soak-") as directory,
    ):
        made = Meshed(capture, topology, Path(directory))
        try:
            yield made
        finally:
            made.stop()
            for name in variables:
                del os.environ[name]


def transfers(count: int) -> dict[str, object]:
    """So many random transfers; what came of it."""
    with meshed(
        SECRET_TTL="6s",
        POOL_MAX_STREAMS_PER_CONNECTION="5",
        POOL_UNUSED_RELEASE_TIMEOUT="100ms",
    ) as world:
        world.start("--stats=127.0.0.1:0", "--log-level=debug")
        began = time.monotonic()
        account = run_transfers(world, range(count), most=64 * MIB)
        seconds = time.monotonic() - began
        wait_for_accounts(world, account)
        texts = {node: proxy.text() for node, proxy in world.proxies.items()}
        return {
            "transfers": account.connections,
            "bytes": account.forth + account.back,
            "seconds": round(seconds, 1),
            "certificates": {n: t.count("certificate of spiffe") for n, t in texts.items()},
            "policy_edits": {n: t.count("is in force: version") for n, t in texts.items()},
        }


def connections(count: int, *, debug: bool) -> dict[str, object]:
    """So many connections opened and closed; what they left behind."""
    with meshed(PYTHONASYNCIODEBUG="1" if debug else "") as world:
        world.start("--stats=127.0.0.1:0", "--log-level=info,access=error")
        return churn(world, count)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, default=0)
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--debug", action="store_true", help="the proxies in asyncio's debug mode")
    args = parser.parse_args()
    if args.transfers:
        print(json.dumps(transfers(args.transfers)), flush=True)
    if args.connections:
        print(json.dumps(connections(args.connections, debug=args.debug)), flush=True)


if __name__ == "__main__":
    main()
