"""Processes known by pid and start time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.lab import processes
from nodenet.lab.state import ProcessRecord

_STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(1, flush=True); time.sleep(60)"
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def _record(pid: int, ticks: int | None = None, log: str = "/none") -> ProcessRecord:
    found = processes.start_ticks(pid) if ticks is None else ticks
    assert found is not None
    return ProcessRecord(role="workload", host="a1", pid=pid, start_ticks=found, log=log)


def test_own_start_time_lies_in_the_past() -> None:
    ticks = processes.start_ticks(os.getpid())
    assert ticks is not None
    hertz = os.sysconf("SC_CLK_TCK")
    assert 0 < ticks <= time.clock_gettime(time.CLOCK_BOOTTIME) * hertz


def test_a_zombie_and_a_pid_that_never_was_are_dead() -> None:
    process = subprocess.Popen(["true"])
    record_pid = process.pid
    os.waitid(os.P_PID, record_pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_ticks(record_pid) is None
    process.wait()
    assert processes.start_ticks(record_pid) is None


def test_end_stops_a_child_and_reaps_it(child: subprocess.Popen[bytes]) -> None:
    record = _record(child.pid)
    assert processes.alive(record)
    processes.end([record])
    assert not processes.alive(record)
    assert not Path(f"/proc/{child.pid}").exists()
    processes.end([record])


def test_end_never_hits_a_stranger_with_the_same_pid(child: subprocess.Popen[bytes]) -> None:
    own = processes.start_ticks(child.pid)
    assert own is not None
    processes.end([_record(child.pid, ticks=own - 1)])
    assert child.poll() is None


def test_end_kills_who_ignores_sigterm() -> None:
    with subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        started = time.monotonic()
        processes.end([_record(process.pid)], grace=0.1)
        assert time.monotonic() - started < 30  # it sleeps twice as long
        assert not Path(f"/proc/{process.pid}").exists()


def test_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{i}\n" for i in range(9)))
    assert processes.last_words(_record(1, 1, str(log)), lines=2) == "7 | 8"
    assert processes.last_words(_record(1, 1, str(tmp_path / "none"))) == ""


def test_a_launch_without_a_byte_at_the_gate_ends(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    argv = processes.launch_argv(
        ["/usr/bin/touch", str(mark)],
        netns=Path("/proc/self/ns/net"),
        cgroup=None,
        hosts_file=Path("/etc/hosts"),
    )
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert done.returncode == 1
    assert b"killed before this process was on record" in done.stderr
    assert not mark.exists()
