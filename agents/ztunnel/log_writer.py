"""Log lines on their way to a descriptor that may be slow: a pipe nobody reads, a stopped terminal.

A thread writes, so the event loop never waits for a disk or a reader. The queue is bounded; what
does not fit is dropped and counted, and a line says how many when there is room again. (ztunnel
waits instead, and so stops carrying bytes when its log is not read.)
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from typing import Final

from nodenet.agents.ztunnel.timestamps import Timestamps

#: Lines waiting at most (ztunnel: src/telemetry.rs).
MAX_LINES: Final = 10_000
#: Lines of one write(2); a pipe takes 64 KiB.
LINES_PER_WRITE: Final = 256
#: Seconds a first line waits for others: the thread wakes so often at most.
GATHER_SECONDS: Final = 0.01
#: Seconds for what is left when the process ends.
CLOSE_SECONDS: Final = 1.0


class LineWriter:
    """Writes lines to a descriptor, in order, from a thread of its own.

    A context manager: leaving it writes what is left, as far as the reader takes it in time.
    Lines are complete, with their newline.
    """

    def __init__(self, fd: int, *, max_lines: int = MAX_LINES, as_json: bool = False) -> None:
        """Does not own ``fd``. ``as_json`` is the form of its own line, about lost ones."""
        self._fd = fd
        self._max = max_lines
        self._json = as_json
        self._lines: deque[bytes] = deque()
        self._wake = threading.Event()
        self._asleep = True
        self._ending = False
        self._told = 0
        self.dropped = 0
        """Lines lost since the start: the queue was full or the descriptor failed."""
        self._timestamps = Timestamps()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> bool:
        """Takes one line; False when there is no room for it. Never waits; from any thread."""
        lines = self._lines
        if len(lines) >= self._max:
            self.dropped += 1
            return False
        lines.append(line)
        if self._asleep:
            self._asleep = False
            self._wake.set()
        return True

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Writes what is left, for so long at most; False when the descriptor is still in use.

        May be called again, to wait on.
        """
        self._ending = True
        self._wake.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if not self._ending:
                time.sleep(GATHER_SECONDS)
            # before the queue is looked at: a line put later wakes again
            self._asleep = True
            self._write_all()
            if self._ending and not self._lines:
                return

    def _write_all(self) -> None:
        lines = self._lines
        while lines:
            batch = [lines.popleft() for _ in range(min(len(lines), LINES_PER_WRITE))]
            if not self._write(b"".join(batch)):
                self.dropped += len(batch)
        if self.dropped != self._told:
            missing, self._told = self.dropped - self._told, self.dropped
            self._write(self._about(missing))

    def _about(self, missing: int) -> bytes:
        now, scope = self._timestamps.text(), "ztunnel.log_writer"
        message = f"{missing} log lines were lost"
        if self._json:
            line = {"level": "warn", "time": now, "scope": scope, "message": message}
            return f"{json.dumps(line)}\n".encode()
        return f"{now}\twarn\t{scope}\t{message}\n".encode()

    def _write(self, raw: bytes) -> bool:
        """False when the descriptor does not take it (closed pipe, full disk)."""
        view = memoryview(raw)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # somebody made the terminal non-blocking
                if self._ending:
                    return False
                time.sleep(GATHER_SECONDS)
            except OSError:
                return False
        return True
