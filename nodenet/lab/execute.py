"""Running a command inside a pod or a node of the lab, in place of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from nodenet.errors import NodenetError, NotFound
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.netns import named_path
from nodenet.lab import cgroups, launch
from nodenet.lab.plan import Host
from nodenet.lab.state import LabDir


class CommandNotRun(NodenetError):
    """The command itself could not be started; the exit status is a shell's."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # one class, two of a shell's statuses


def find_host(directory: LabDir, name: str) -> Host:
    """The pod (``a1``, ``lab/a1``) or node of that name; NotFound says which there are."""
    plan = directory.require().plan()
    host = plan.pod(name) or next((n for n in plan.nodes if n.name == name), None)
    if host is None:
        names = " ".join(h.name for h in (*plan.pods, *plan.nodes))
        raise NotFound(f"no pod {name} in lab {plan.lab}", hint=f"it has: {names}")
    return host


def execute(directory: LabDir, name: str, argv: Sequence[str]) -> NoReturn:
    """Becomes ``argv`` inside the pod: its exit status, input and terminal are the command's.

    Raises NotFound for an unknown pod, CommandNotRun when there is no such command.
    """
    state = directory.require()
    host = find_host(directory, name)
    cgroup = None
    if state.cgroup is not None:
        # `lab down` ends whatever is in there, so a forgotten shell does not keep the namespace
        cgroup = str(Cgroup.create(cgroups.host_cgroup(Path(state.cgroup), host)).path)
    try:
        launch.enter(str(named_path(host.netns)), cgroup, {"/etc/hosts": str(directory.hosts_path)})
    except FileNotFoundError as error:
        raise NotFound(
            f"namespace of {name} is gone: {error.filename}", hint="see: nodenet lab status"
        ) from error
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(argv[0], list(argv))
    except FileNotFoundError as error:
        raise CommandNotRun(f"cannot run {argv[0]}: not found", exit_code=127) from error
    except OSError as error:
        reason = str(error.strerror).lower()
        raise CommandNotRun(f"cannot run {argv[0]}: {reason}", exit_code=126) from error
