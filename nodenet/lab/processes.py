"""Starting, recognising and ending the processes of a lab.

A lab has no supervisor: `lab up` returns and its processes stay. They are known by pid and start
time from the state file; the start time makes sure that a signal never hits a stranger that got
the pid later.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodenet.errors import NodenetError
from nodenet.lab import launch
from nodenet.lab.state import ProcessRecord, Role

#: Seconds a process gets between SIGTERM and SIGKILL.
GRACE_SECONDS: Final = 2.0
#: Seconds the kernel may take to end a killed process.
_KILL_SECONDS: Final = 5.0


class LabProcessError(NodenetError):
    """A process of the lab did not start, or would not end."""


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None for a dead one (or a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command's name may hold blanks and brackets; the fields begin behind the last one
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def alive(process: ProcessRecord) -> bool:
    """Whether that very process still runs."""
    return start_ticks(process.pid) == process.start_ticks


def launch_argv(
    argv: Sequence[str],
    *,
    netns: Path,
    cgroup: Path | None,
    hosts_file: Path,
    keep_input: bool = False,
) -> list[str]:
    """The command that becomes ``argv`` inside a namespace, after one byte on its input."""
    spec = {
        "netns": str(netns),
        "cgroup": None if cgroup is None else str(cgroup),
        "binds": {"/etc/hosts": str(hosts_file)},
        "input": keep_input,
        "argv": list(argv),
    }
    # No site packages and no current directory on its path: it starts in half the time.
    return [sys.executable, "-P", "-S", "-E", str(Path(launch.__file__)), json.dumps(spec)]


def start(
    argv: Sequence[str],
    *,
    role: Role,
    host: str,
    netns: Path,
    cgroup: Path | None,
    hosts_file: Path,
    log: Path,
    record: Callable[[ProcessRecord], None],
    environ: Mapping[str, str] = MappingProxyType({}),
) -> ProcessRecord:
    """Starts ``argv`` inside a namespace and returns at once; ``environ`` is added to this one's.

    The process waits until ``record`` has returned; if this process dies before that, it ends by
    itself. Output goes to ``log``, input is /dev/null, the process leads a session of its own.
    """
    script = launch_argv(argv, netns=netns, cgroup=cgroup, hosts_file=hosts_file)
    log.parent.mkdir(parents=True, exist_ok=True)
    gate_read, gate_write = os.pipe()
    try:
        pid = os.posix_spawn(
            script[0],
            script,
            {**os.environ, **environ},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, gate_read, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        started = start_ticks(pid)
        if started is None:
            raise LabProcessError(f"{role} of {host} died at once: {log}", hint="look there")
        process = ProcessRecord(role=role, host=host, pid=pid, start_ticks=started, log=str(log))
        record(process)
        os.write(gate_write, b"g")
        return process
    finally:
        os.close(gate_read)
        os.close(gate_write)


def end(processes: Iterable[ProcessRecord], *, grace: float = GRACE_SECONDS) -> None:
    """Ends these processes: SIGTERM, SIGKILL after ``grace`` seconds, and waits for them.

    Those that are gone already, and pids that belong to somebody else by now, are passed over.
    Raises LabProcessError for one that survives SIGKILL.
    """
    with contextlib.ExitStack() as stack:
        running: dict[int, ProcessRecord] = {}
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(process.pid)
                stack.callback(os.close, fd)
                if alive(process):  # asked after the pidfd was opened: it cannot change any more
                    running[fd] = process
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_SECONDS)):
            for fd in running:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
            _wait(running, seconds)
        if running:
            names = ", ".join(f"{p.role} {p.host} (pid {p.pid})" for p in running.values())
            raise LabProcessError(f"cannot end processes of the lab: {names}")


def _wait(running: dict[int, ProcessRecord], seconds: float) -> None:
    """Takes those out of ``running`` that end within the time."""
    poll = select.poll()
    for fd in running:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while running and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            pid = running.pop(fd).pid
            with contextlib.suppress(ChildProcessError):  # a child only of the one that made it
                os.waitpid(pid, 0)


def last_words(process: ProcessRecord, lines: int = 5) -> str:
    """The end of a process's output, for an error message; empty when there is none."""
    try:
        text = Path(process.log).read_text(errors="replace")
    except OSError:
        return ""
    return " | ".join(text.strip().splitlines()[-lines:])
