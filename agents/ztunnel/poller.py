"""Readiness of many sockets, delivered from one edge-triggered epoll inside the event loop.

The loop watches a single descriptor, the epoll's own. A socket is registered once for everything
and never modified, so a connection costs one epoll_ctl a socket, where the loop's own readers and
writers cost several calls and handles. Measured on uvloop, CPU of a whole plaintext connection:
this way 65 µs, `add_reader`/`add_writer` 88 µs, transports and a task 185 µs.

Edge-triggered means: a target hears of readiness once and must read (or write) until the kernel
has no more, or ask to be called `again`. Who adds a socket without EPOLLET hears of it every turn
it is ready in, and says by `Poller.modify` what it waits for.
"""

from __future__ import annotations

import asyncio
import logging
import select
from _socket import socket as RawSocket
from collections.abc import Callable
from typing import Final, Protocol

#: Everything about a connected socket, told at each change.
STREAM: Final = (
    select.EPOLLIN | select.EPOLLPRI | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
)
#: A listener is told as long as connections wait, so that a batch can be bounded.
LISTENER: Final = select.EPOLLIN
#: Events of one turn; what is left comes in the next turn, after the loop's other work. Small
#: frames are written at its end: with longer turns the other proxy and this one take turns too,
#: instead of working at the same time (100 busy connections: 256 events cost 15 % of the round
#: trips a second), with much shorter ones there are more records and system calls.
MAX_EVENTS: Final = 32

logger = logging.getLogger(__name__)


class Target(Protocol):
    """Who is told about a socket."""

    def event(self, mask: int) -> None:
        """Something changed; ``mask`` is of EPOLL* bits."""

    def resume(self) -> None:
        """The turn that was asked for with `Poller.again`."""

    def broken(self) -> None:
        """One of the above raised; the target ends what it has, raising nothing."""


class Poller:
    """Delivers readiness to targets. Belongs to one loop and its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._targets: dict[int, Target] = {}
        self._direct: dict[int, int] = {}
        """What is told of those that the loop watches itself."""
        self._again: list[Target] = []
        self._retired: list[RawSocket] = []
        self._at_end: list[Callable[[], None]] = []
        self.delivering = False
        loop.add_reader(self._epoll.fileno(), self._turn)

    def close(self) -> None:
        """Ends delivery. Sockets stay open, except those that were retired."""
        self._loop.remove_reader(self._epoll.fileno())
        for fd in self._direct:
            self._modify_direct(fd, 0)
        self._end_of_turn()
        self._epoll.close()

    def cut(self) -> None:
        """Ends what every target has."""
        for target in list(self._targets.values()):
            target.broken()

    def __len__(self) -> int:
        """How many sockets are watched."""
        return len(self._targets)

    def add(self, fd: int, mask: int, target: Target) -> None:
        """Watches a descriptor; what is ready already is told in the next turn."""
        self._epoll.register(fd, mask)
        self._targets[fd] = target

    def add_direct(self, fd: int, mask: int, target: Target) -> None:
        """As `add`, of a descriptor that lives long and carries much: the loop watches it itself.

        That saves a system call and a wake-up an event. EPOLLERR and EPOLLHUP come by the epoll
        all the same: uvloop tells of a socket with an error once, whatever is left to read.
        """
        self._epoll.register(fd, 0)
        self._targets[fd] = target
        self._direct[fd] = 0
        self._modify_direct(fd, mask)

    def hand_over(self, fd: int, target: Target) -> None:
        """From now on ``target`` is told about a descriptor that is watched already."""
        self._targets[fd] = target

    def remove(self, fd: int) -> None:
        """Tells nobody about a descriptor any more; it stays open."""
        self._targets.pop(fd, None)
        if fd in self._direct:
            self._forget_direct(fd)
        self._epoll.unregister(fd)

    def modify(self, fd: int, mask: int) -> None:
        """Changes what is told about a descriptor; 0 silences it."""
        if fd in self._direct:
            self._modify_direct(fd, mask)
        else:
            self._epoll.modify(fd, mask)

    def again(self, target: Target) -> None:
        """Has `Target.resume` called in the next turn, after the loop's other work."""
        if not self._again:
            self._loop.call_soon(self._resume)
        self._again.append(target)

    def retire(self, fd: int, sock: RawSocket) -> None:
        """Forgets a socket and closes it at the end of the turn.

        Not before: an event of this turn for the same number would reach whoever got it next.
        """
        self._targets.pop(fd, None)
        if fd in self._direct:
            self._forget_direct(fd)
        self._retired.append(sock)
        if not self.delivering:
            self._end_of_turn()

    def at_end(self, call: Callable[[], None]) -> None:
        """Has ``call`` run once, at the end of the turn that is being delivered."""
        assert self.delivering, "only a target in its turn may ask for that"
        self._at_end.append(call)

    def _turn(self) -> None:
        targets = self._targets
        self.delivering = True
        for fd, mask in self._epoll.poll(0, MAX_EVENTS):
            target = targets.get(fd)
            if target is not None:
                try:
                    target.event(mask)
                except Exception:
                    self._failed(target)
        self._end_of_turn()

    def _told(self, fd: int, mask: int) -> None:
        """The loop tells of a direct one."""
        target = self._targets.get(fd)
        if target is None:
            return
        self.delivering = True
        try:
            target.event(mask)
        except Exception:
            self._failed(target)
        if self._at_end or self._retired:
            self._end_of_turn()
        else:
            self.delivering = False

    def _modify_direct(self, fd: int, mask: int) -> None:
        loop, changed = self._loop, self._direct[fd] ^ mask
        self._direct[fd] = mask
        if changed & select.EPOLLIN:
            if mask & select.EPOLLIN:
                loop.add_reader(fd, self._told, fd, select.EPOLLIN)
            else:
                loop.remove_reader(fd)
        if changed & select.EPOLLOUT:
            if mask & select.EPOLLOUT:
                loop.add_writer(fd, self._told, fd, select.EPOLLOUT)
            else:
                loop.remove_writer(fd)

    def _forget_direct(self, fd: int) -> None:
        self._modify_direct(fd, 0)
        del self._direct[fd]

    def _resume(self) -> None:
        waiting, self._again = self._again, []
        self.delivering = True
        for target in waiting:
            try:
                target.resume()
            except Exception:
                self._failed(target)
        self._end_of_turn()

    def _failed(self, target: Target) -> None:
        logger.exception("bug: %s failed; a connection is cut", type(target).__name__)
        target.broken()

    def _end_of_turn(self) -> None:
        self.delivering = False
        if self._at_end:
            calls, self._at_end = self._at_end, []
            for call in calls:
                call()
        if self._retired:
            retired, self._retired = self._retired, []
            for sock in retired:
                sock.close()
