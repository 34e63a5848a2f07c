"""A process that is measured: its CPU time, its memory, and the CPU it is on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A running process, by its id."""

    pid: int

    def move(self, cpu: int) -> None:
        """Pins all its threads to a CPU."""
        for task in self._tasks():
            os.sched_setaffinity(int(task.name), {cpu})

    def cpu_ns(self) -> int:
        """CPU of all its threads so far (/proc/PID/task/*/schedstat)."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self._tasks())

    def rss_bytes(self) -> int:
        """Memory it has in RAM; what the kernel keeps for its sockets is not in it."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    def _tasks(self) -> list[Path]:
        return list(Path(f"/proc/{self.pid}/task").iterdir())
