"""Makes a lab, and kills itself by SIGKILL at the given event: ``killed_up.py ID enroll|plain N``.

Events are what the interpreter audits: opened files, calls of os and socket, started processes;
0 never comes. Prints how many events a whole `up` has.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

import pyroute2

from nodenet.lab.plan import make_plan
from nodenet.lab.state import LabDir
from nodenet.lab.up import up

assert pyroute2  # imported here, so that the import is not among the events


class _Quiet:
    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        yield


def main(name: str, kind: str, limit: int) -> None:
    """Runs `up` for a lab of that name; ``kind`` enroll captures, plain does not."""
    plan = make_plan(instance_id=name, enroll=kind == "enroll")
    seen = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        seen += 1
        if seen == limit:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    up(plan, LabDir(name), _Quiet())
    print(seen)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
