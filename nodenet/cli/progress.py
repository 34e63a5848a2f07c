"""Numbered steps on stderr for anything over a second: ``[3/7] compile  0.4 s``.

On a terminal one line a step, rewritten; elsewhere one line at the start and one at the end. There
is no thread behind the spinner: code that waits calls `Step.waiting` in its loop. A thread would
keep the process from entering mount namespaces, a timer signal would make BPF_PROG_LOAD fail.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nodenet.cli.globals import Globals

_SPINNER = "|/-\\"
#: A step that waits longer than this many seconds says for what.
PATIENCE = 10.0


class Step:
    """One running step."""

    def __init__(self, steps: Steps, label: str, started: float) -> None:
        self._steps = steps
        self._label = label
        self._started = started
        self._turns = 0
        self._told = False

    def waiting(self, what: str, limit_seconds: float) -> None:
        """Called in the loop of a wait; after ten seconds it says what for, and the limit."""
        passed = self._steps.clock() - self._started
        self._turns += 1
        note = ""
        if passed > PATIENCE:
            note = f"  waiting for {what}, {passed:.0f} of {limit_seconds:.0f} s"
        if self._steps.terminal:
            self._steps.rewrite(f"{self._label} {_SPINNER[self._turns % 4]}{note}")
        elif note and not self._told:
            self._told = True
            self._steps.line(self._label + note)


class Steps:
    """A known number of steps, or an unknown one (``total`` None: no numbers)."""

    def __init__(
        self,
        g: Globals,
        total: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.terminal = sys.stderr.isatty() and g.environ.get("TERM") != "dumb"
        self._quiet = g.quiet
        self._total = total
        self._number = 0
        self._shown = 0

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """One step; prints how long it took, or that it failed."""
        self._number += 1
        label = f"[{self._number}/{self._total}] {name}" if self._total else name
        started = self.clock()
        if self.terminal:
            self.rewrite(label)
        else:
            self.line(label)
        try:
            yield Step(self, label, started)
        except BaseException:
            self._end(f"{label}  failed after {self.clock() - started:.1f} s")
            raise
        self._end(f"{label}  {self.clock() - started:.1f} s")

    def _end(self, text: str) -> None:
        if not self.terminal:
            self.line(text)
            return
        self.rewrite(text)
        self._shown = 0
        self._print("\n")

    def line(self, text: str) -> None:
        """One line on a stderr that is no terminal."""
        self._print(text + "\n")

    def rewrite(self, text: str) -> None:
        """Replaces the current line; spaces wipe the rest, no escape sequence needed."""
        self._print("\r" + text + " " * max(0, self._shown - len(text)))
        self._shown = len(text)

    def _print(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(text)
            sys.stderr.flush()
