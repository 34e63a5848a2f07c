"""A sampling profiler: where the process spends its time, for ``go tool pprof``.

A thread looks at the stacks of all others at a fixed rate. What it sees is time on the clock, not
on the processor: a loop that waits is seen waiting (in ``run``). It costs the process about a
percent at 100 looks a second.
"""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType
from typing import Final

from nodenet.agents.ztunnel.pprof import Frame, encode

#: Frames of one stack, innermost first; deeper ones are left out.
MAX_DEPTH: Final = 128
#: Different stacks of one profile.
MAX_STACKS: Final = 20_000

Stack = tuple[tuple[CodeType, int], ...]


def sample(seconds: float, frequency: int, stop: threading.Event) -> bytes:
    """Samples for so long, or until ``stop``; a gzipped pprof profile.

    Blocks: for a thread of its own, which is not in the profile.
    """
    own = threading.get_ident()
    period = 1.0 / frequency
    seen: Counter[Stack] = Counter()
    began_ns, began = time.time_ns(), time.monotonic()
    due = began
    while (now := time.monotonic()) < began + seconds:
        due = max(due + period, now)
        if stop.wait(due - now):
            break
        for thread, frame in sys._current_frames().items():
            if thread != own:
                stack = _stack(frame)
                if stack in seen or len(seen) < MAX_STACKS:
                    seen[stack] += 1
    lasted_ns = int((time.monotonic() - began) * 1e9)
    return gzip.compress(
        encode(
            {tuple(_frame(*each) for each in stack): n for stack, n in seen.items()},
            began_ns=began_ns,
            lasted_ns=lasted_ns,
            period_ns=int(period * 1e9),
        )
    )


def _stack(frame: FrameType | None) -> Stack:
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < MAX_DEPTH:
        found.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(found)


def _frame(code: CodeType, line: int) -> Frame:
    return Frame(code.co_qualname, code.co_filename, code.co_firstlineno, line)
