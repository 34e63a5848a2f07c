"""How the proxy's log lines look, and how many a flood of failures may write."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Final, TextIO

from nodenet.agents.ztunnel.access_log import LogFormat
from nodenet.agents.ztunnel.log_writer import LineWriter
from nodenet.times import rfc3339_ns

#: Lines about single connections in one second; the rest is counted and said later.
LINES_PER_SECOND: Final = 20


def level_word(number: int) -> str:
    """A level as log lines write it."""
    return "warn" if number == logging.WARNING else logging.getLevelName(number).lower()


class PlainLines(logging.Formatter):
    """``time<TAB>level<TAB>scope<TAB>message``, as ztunnel writes them (ztunnel: telemetry)."""

    def format(self, record: logging.LogRecord) -> str:
        moment = rfc3339_ns(int(record.created * 1e9))
        scope = record.name.removeprefix("nodenet.agents.")
        line = f"{moment}\t{level_word(record.levelno)}\t{scope}\t{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One object a line; the scope in full, a traceback in ``trace``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "level": level_word(record.levelno),
            "time": rfc3339_ns(int(record.created * 1e9)),
            "scope": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _ToWriter(logging.Handler):
    """Hands lines to the thread that writes."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put((self.format(record) + "\n").encode(errors="backslashreplace"))
        except Exception:
            self.handleError(record)


def configure(
    level: int,
    *,
    access: bool = False,
    stream: TextIO | None = None,
    form: LogFormat = LogFormat.PLAIN,
    writer: LineWriter | None = None,
) -> None:
    """Sends this process's log to ``writer``, else to ``stream`` (stderr).

    For the daemon's entry, never a library. Levels can be changed later: `log_control`.
    """
    handler: logging.Handler = (
        logging.StreamHandler(stream or sys.stderr) if writer is None else _ToWriter(writer)
    )
    handler.setFormatter(PlainLines() if form is LogFormat.PLAIN else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("nodenet").setLevel(level)
    logging.getLogger("access").setLevel(logging.INFO if access else logging.ERROR)
    # costs a lookup of the caller's frame for every line and is not in the format
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class LineBudget:
    """Keeps a peer or an application that fails all the time from filling the disk."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lines_per_second: int = LINES_PER_SECOND
    ) -> None:
        self._loop = loop
        self._limit = lines_per_second
        self._second = -1
        self._left = 0
        self.suppressed = 0
        """Lines not written since the last that was."""

    def take(self) -> bool:
        """Whether a line may be written now; if not, it is counted."""
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._left = second, self._limit
        if self._left:
            self._left -= 1
            return True
        self.suppressed += 1
        return False

    def forget(self) -> int:
        """How many were suppressed, which starts again at 0."""
        count, self.suppressed = self.suppressed, 0
        return count
