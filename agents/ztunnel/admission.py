"""How many connections the worker may have, and what happens when descriptors run out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Final

from nodenet.agents.ztunnel.listeners import Listener
from nodenet.agents.ztunnel.logs import LineBudget

#: Descriptors kept for everything that is no connection: namespaces, listeners, records, logs.
RESERVED_FILES: Final = 256
#: Of a connection that is passed on, of one that goes through a tunnel, and of a tunnel's own.
PASSED_ON_FILES: Final = 2
TUNNELLED_FILES: Final = 1
#: Seconds after which paused listeners are tried again although no connection of ours has ended:
#: descriptors may have come free elsewhere.
RETRY_SECONDS: Final = 0.5

logger = logging.getLogger(__name__)


class Admission:
    """Counts the worker's live connections and pauses listeners while no more can be taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_files: int, lines: LineBudget) -> None:
        self._loop = loop
        self._lines = lines
        self._max_files = max_files
        self._most = max(PASSED_ON_FILES, max_files - RESERVED_FILES)
        self._files = 0
        self._paused: set[Listener] = set()
        self._retry: asyncio.Handle | None = None
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._nobody = asyncio.Event()
        self._nobody.set()
        self.active = 0
        """Live connections of all pods, those being dialled included."""

    def has_room(self) -> bool:
        """Whether one more leaves enough descriptors for everything else."""
        # of whichever kind it will turn out to be
        return self._files + PASSED_ON_FILES <= self._most

    def opened(self, files: int) -> None:
        """A connection has begun that needs so many descriptors."""
        self.active += 1
        self._files += files
        self._nobody.clear()

    def closed(self, files: int) -> None:
        """A connection has ended; its descriptors come free at the end of the turn."""
        self.active -= 1
        self._files -= files
        if not self.active:
            self._nobody.set()
        if self._paused:
            self._retry_by(self._loop.call_soon(self._rearm))

    def lend(self) -> bool:
        """Whether one descriptor more than a moment ago can be opened now.

        For a connection that was accepted with the last one and needs another for its dial.
        """
        if self._spare < 0:
            return False
        os.close(self._spare)
        self._spare = -1
        return True

    async def nobody(self) -> None:
        """Returns when there is no live connection."""
        await self._nobody.wait()

    def paused(self, listener: Listener) -> None:
        """A listener cannot take its next connection; it is silent until it is rearmed."""
        if self._lines.take():
            logger.warning(
                "out of file descriptors (limit %d, %d connections): new connections wait; "
                "raise the limit: LimitNOFILE= or ulimit -n",
                self._max_files,
                self.active,
            )
        self._paused.add(listener)
        if self._retry is None:
            self._retry_by(self._loop.call_later(RETRY_SECONDS, self._rearm))

    def forget(self, listener: Listener) -> None:
        """The listener is closed."""
        self._paused.discard(listener)

    def close(self) -> None:
        """No listener is rearmed any more."""
        self._paused.clear()
        self.lend()
        if self._retry is not None:
            self._retry.cancel()

    def _retry_by(self, handle: asyncio.Handle) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = handle

    def _rearm(self) -> None:
        self._retry = None
        if self._spare < 0:
            with contextlib.suppress(OSError):  # still none; then the listeners pause again
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        paused, self._paused = self._paused, set()
        for listener in paused:
            listener.rearm()
