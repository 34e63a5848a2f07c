"""Names to addresses, off the loop's thread.

Threads of our own rather than an executor's: a resolver that hangs must hang neither the exit of
the process nor, while others of its threads are free, the next name.
"""

from __future__ import annotations

import asyncio
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


class Lookup:
    """One name that somebody waits for; `Resolver.forget` when he does no more."""

    __slots__ = ("answer", "family", "host", "port")

    def __init__(self, host: str, port: int, family: int, answer: Answer) -> None:
        self.host = host
        self.port = port
        self.family = family
        self.answer: Answer | None = answer
        """None: nobody is to be told."""


class Resolver:
    """Look-ups for one loop. Answers come in the loop's thread, none after `close`.

    What waits for a thread is as much as is asked for and not forgotten: dials that are given up
    while a name server is silent leave nothing behind that the next dial would wait for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._waiting: dict[Lookup, None] = {}
        """In the order they came."""
        self._threads = 0
        self._idle = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Look-ups without a thread."""
        return len(self._waiting)

    def resolve(self, host: str, port: int, family: int, answer: Answer) -> Lookup:
        """Looks a name up; ``family`` is AF_UNSPEC, AF_INET or AF_INET6."""
        lookup = Lookup(host, port, family, answer)
        with self._changed:
            if self._closed:
                return lookup
            self._waiting[lookup] = None
            if len(self._waiting) <= self._idle:
                self._changed.notify()
                return lookup
            if self._threads >= MAX_THREADS:
                return lookup
            self._threads += 1
        threading.Thread(target=self._work, name="resolver", daemon=True).start()
        return lookup

    def forget(self, lookup: Lookup) -> None:
        """Nobody waits for it any more."""
        lookup.answer = None
        with self._changed:
            self._waiting.pop(lookup, None)

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

        lookup = self.resolve(host, port, socket.AF_UNSPEC, answer)
        try:
            return await future
        finally:
            self.forget(lookup)

    def close(self) -> None:
        """Drops what is not answered."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while (lookup := self._next()) is not None:
            self._look_up(lookup)
            del lookup  # an idle thread keeps nobody alive

    def _next(self) -> Lookup | None:
        """The longest waiting; None when the thread is to end."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._closed, _IDLE_SECONDS)
            self._idle -= 1
            if not self._waiting:
                self._threads -= 1
                return None
            lookup = next(iter(self._waiting))
            del self._waiting[lookup]
            return lookup

    def _look_up(self, lookup: Lookup) -> None:
        found: list[Address] | OSError
        try:
            infos = socket.getaddrinfo(lookup.host, lookup.port, lookup.family, socket.SOCK_STREAM)
            found = interleaved([(info[0], info[4]) for info in infos])
        except OSError as error:
            found = error.with_traceback(None)  # which has this frame, and so who asked
        except UnicodeError as error:  # a label of more than 63 characters
            found = socket.gaierror(socket.EAI_NONAME, str(error))
        try:
            self._loop.call_soon_threadsafe(self._tell, lookup, found)
        except RuntimeError:
            pass  # the loop is closed

    def _tell(self, lookup: Lookup, found: list[Address] | OSError) -> None:
        answer, lookup.answer = lookup.answer, None
        if answer is not None and not self._closed:
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
