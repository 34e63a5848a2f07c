"""Names to addresses, off the loop's thread.

Threads of our own rather than an executor's: a resolver that hangs must hang neither the exit of
the process nor, while others of its threads are free, the next name.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

#: Look-ups at a time; a name server that does not answer holds one for 5 to 30 s.
MAX_THREADS: Final = 32
#: An idle thread ends after so many seconds.
_IDLE_SECONDS: Final = 30.0

#: Family and socket address, in the order they are tried.
Address = tuple[int, tuple[Any, ...]]
#: Told the addresses, or why there are none.
Answer = Callable[[list[Address] | OSError], None]


class Resolver:
    """Look-ups for one loop. Answers come in the loop's thread, none after `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[str, int, int, Answer]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def resolve(self, host: str, port: int, family: int, answer: Answer) -> None:
        """Looks a name up; ``family`` is AF_UNSPEC, AF_INET or AF_INET6."""
        self._jobs.put((host, port, family, answer))
        with self._lock:
            if self._jobs.qsize() <= self._idle or self._threads >= MAX_THREADS:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="resolver", daemon=True).start()

    async def addresses(self, host: str, port: int) -> list[Address]:
        """As `resolve`, for one who waits. OSError."""
        future: asyncio.Future[list[Address]] = self._loop.create_future()

        def answer(found: list[Address] | OSError) -> None:
            if future.done():
                return
            if isinstance(found, OSError):
                future.set_exception(found)
            else:
                future.set_result(found)

        self.resolve(host, port, socket.AF_UNSPEC, answer)
        return await future

    def close(self) -> None:
        """Drops what is not answered."""
        self._closed = True

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    self._idle -= 1
                    # a job put since then has found no idle thread, or this one: look once more
                    if self._jobs.empty():
                        self._threads -= 1
                        return
                continue
            with self._lock:
                self._idle -= 1
            self._look_up(*job)
            del job  # an idle thread keeps nobody alive

    def _look_up(self, host: str, port: int, family: int, answer: Answer) -> None:
        found: list[Address] | OSError
        try:
            infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
            found = interleaved([(info[0], info[4]) for info in infos])
        except OSError as error:
            found = error.with_traceback(None)  # which has this frame, and so who asked
        except UnicodeError as error:  # a label of more than 63 characters
            found = socket.gaierror(socket.EAI_NONAME, str(error))
        try:
            self._loop.call_soon_threadsafe(self._tell, answer, found)
        except RuntimeError:
            pass  # the loop is closed

    def _tell(self, answer: Answer, found: list[Address] | OSError) -> None:
        if not self._closed:
            answer(found)


def interleaved(addresses: list[Address]) -> list[Address]:
    """Families in turn, beginning with the first one (RFC 8305 section 4)."""
    if not addresses:
        return []
    first = [a for a in addresses if a[0] == addresses[0][0]]
    other = [a for a in addresses if a[0] != addresses[0][0]]
    mixed = []
    while first or other:
        if first:
            mixed.append(first.pop(0))
        if other:
            mixed.append(other.pop(0))
    return mixed


def literal(host: str, port: int) -> Address | None:
    """The address that ``host`` is; None when it is a name, or needs the resolver for its zone."""
    try:
        if ":" in host:
            socket.inet_pton(socket.AF_INET6, host)
            return socket.AF_INET6, (host, port)
        socket.inet_pton(socket.AF_INET, host)
        return socket.AF_INET, (host, port)
    except OSError:
        return None
