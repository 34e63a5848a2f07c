"""The calling applications of a demo: one in each pod that calls somebody."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from nodenet.errors import NodenetError
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.netns import named_path
from nodenet.lab import cgroups, processes
from nodenet.lab.flows import Call, Pair
from nodenet.lab.plan import Pod
from nodenet.lab.state import LabDir, LabState

#: Seconds one connection with its request may take.
CALL_SECONDS: Final = 3.0
#: Seconds a calling application has to start, besides its calls.
_START_SECONDS: Final = 10.0


class CallerFailed(NodenetError):
    """A calling application ended without an answer."""


class Caller:
    """A calling application that has been told whom to call."""

    def __init__(self, pod: Pod, calls: Sequence[Pair], process: subprocess.Popen[bytes]) -> None:
        self._pod = pod
        self._calls = calls
        self._process = process
        self._deadline = time.monotonic() + _START_SECONDS + CALL_SECONDS * len(calls)

    def results(self) -> Iterator[tuple[Pair, list[Call]]]:
        """Waits for the answer; CallerFailed when the application ends or is too late."""
        output = self._process.stdout
        assert output is not None
        poll = select.poll()
        poll.register(output, select.POLLIN)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            left = self._deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise CallerFailed(f"calls from {self._pod.full_name} are not done in time")
            chunk = os.read(output.fileno(), 1 << 16)
            if not chunk:
                raise CallerFailed(f"the calling app in {self._pod.full_name} ended early")
            answer += chunk
        found = msgspec.json.decode(answer, type=list[list[Call]])
        yield from zip(self._calls, found, strict=True)


@contextlib.contextmanager
def calling(
    directory: LabDir,
    state: LabState,
    calls: Sequence[Pair],
    requests: int,
    marks: Mapping[Pair, str],
    denied: Collection[Pair],
) -> Iterator[Caller]:
    """An application that makes these calls, all of one pod, and holds them open for the block.

    Of the ``denied`` ones every request is tried, of the others none after one that fails.
    """
    pod = calls[0].source
    cgroup = None
    if state.cgroup is not None:
        cgroup = Cgroup.create(cgroups.host_cgroup(Path(state.cgroup), pod)).path
    argv = processes.launch_argv(
        [sys.executable, "-m", "nodenet.lab.workload", "call", "--timeout", str(CALL_SECONDS)],
        netns=named_path(pod.netns),
        cgroup=cgroup,
        hosts_file=directory.hosts_path,
        keep_input=True,
    )
    targets = [
        {
            "address": str(pair.target.address(pair.family)),
            "port": pair.port,
            "count": requests,
            "mark": marks[pair],
            "pods": len(pair.servers),
            "denied": pair in denied,
        }
        for pair in calls
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            # the gate's byte; a caller whose maker dies ends by itself, so it needs no record
            process.stdin.write(b"g" + json.dumps(targets).encode() + b"\n")
            process.stdin.flush()
            yield Caller(pod, calls, process)
        except BaseException:
            # Ctrl-C, or somebody else's failure: nobody waits for its answer any more
            process.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.close()
            try:
                process.wait(_START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
