"""Tells when a pod's network namespace has ended.

The proxy's own sockets and descriptors keep a namespace alive, so the kernel never says that it
is gone: the proxy has to let go first. The sign is that the path by which the pod was enrolled no
longer leads to it. A path below /run/netns is watched through its directory, one below /proc
through the process. Then everything that could still use the namespace is looked at once, in a
thread: processes in it, and other paths mounted to it. Only if there is none it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodenet.kernel import inotify
from nodenet.kernel.inotify import Event, Inotify

#: Seconds between two looks at a namespace that has lost its path but is still used.
RECHECK_SECONDS: Final = 30.0

_OF_PROCESS: Final = re.compile(r"/proc/(\d+)/")

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Watched:
    cookie: int
    path: str
    inode: int
    pidfds: dict[int, int] = field(default_factory=dict)
    """By process: those whose end is a reason to look."""
    timer: asyncio.TimerHandle | None = None
    checking: bool = False
    checked_again: bool = False
    """Something happened while the last look was under way."""


class NamespaceWatch:
    """Calls ``gone(cookie)`` once for each watched namespace that has ended.

    Shares the inotify instance of its owner, who passes the events on to `on_event`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, events: Inotify, gone: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._inotify = events
        self._gone = gone
        self._watched: dict[int, _Watched] = {}
        self._names: dict[tuple[Path | None, str], set[int]] = {}
        """Cookies by directory and name of their paths."""

    def watch(self, cookie: int, path: str, inode: int) -> None:
        """Watches the namespace with this cookie, replacing an earlier watch of it."""
        self.forget(cookie)
        watched = self._watched[cookie] = _Watched(cookie, path, inode)
        if of_process := _OF_PROCESS.match(path):
            self._watch_process(watched, int(of_process[1]))
        else:
            with contextlib.suppress(inotify.WatchFailed):  # gone: the look below finds that
                self._inotify.watch(Path(path).parent)
            self._names.setdefault(_name_of(path), set()).add(cookie)
        # what happened between opening the namespace and watching it
        if not _leads_to(path, inode):
            self._look(watched)

    def forget(self, cookie: int) -> None:
        """Ends a watch; nothing happens for an unknown one."""
        watched = self._watched.pop(cookie, None)
        if watched is None:
            return
        name = _name_of(watched.path)
        if cookies := self._names.get(name):
            cookies.discard(cookie)
            if not cookies:
                del self._names[name]
        for pidfd in watched.pidfds.values():
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        if watched.timer is not None:
            watched.timer.cancel()

    def close(self) -> None:
        """Ends all watches."""
        for cookie in list(self._watched):
            self.forget(cookie)

    def on_event(self, event: Event) -> None:
        """Takes an inotify event; one that concerns no namespace is passed over."""
        if event.mask & inotify.OVERFLOW or not event.name:  # events or a directory were lost
            concerned = set(self._watched)
        else:
            concerned = self._names.get((event.directory, event.name), set())
        for cookie in list(concerned):
            self._check(self._watched[cookie])

    def _watch_process(self, watched: _Watched, pid: int) -> None:
        if pid in watched.pidfds:
            return
        with contextlib.suppress(OSError):  # ended already
            pidfd = watched.pidfds[pid] = os.pidfd_open(pid)
            self._loop.add_reader(pidfd, self._process_ended, watched, pid)

    def _process_ended(self, watched: _Watched, pid: int) -> None:
        pidfd = watched.pidfds.pop(pid)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._check(watched)

    def _check(self, watched: _Watched) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
            watched.timer = None
        if not _leads_to(watched.path, watched.inode):
            self._look(watched)

    def _look(self, watched: _Watched) -> None:
        if watched.checking:
            watched.checked_again = True
            return
        watched.checking = True
        found = self._loop.run_in_executor(None, user_of, watched.inode)
        found.add_done_callback(lambda done: self._looked(watched, done))

    def _looked(self, watched: _Watched, done: asyncio.Future[str | int | None]) -> None:
        watched.checking = False
        if done.cancelled() or self._watched.get(watched.cookie) is not watched:
            return
        if watched.checked_again:
            watched.checked_again = False
            self._check(watched)
            return
        user = done.result()
        if user is None:
            self.forget(watched.cookie)
            self._gone(watched.cookie)
            return
        logger.debug(
            "%s no longer leads to netns %d, still used by %s", watched.path, watched.inode, user
        )
        if isinstance(user, int):
            self._watch_process(watched, user)
        # a process may leave a namespace without ending, and mounts tell nobody
        watched.timer = self._loop.call_later(RECHECK_SECONDS, self._check, watched)


def user_of(inode: int) -> str | int | None:
    """Who else uses the network namespace: a process id, or a path it is mounted at. Blocks.

    Sees the processes of this pid namespace and the mounts of this mount namespace; of a process
    the main thread counts.
    """
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile
                if os.stat(f"/proc/{name}/ns/net").st_ino == inode:
                    return int(name)
    root = f"net:[{inode}]"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        if fields[3] == root:
            return fields[4]
    return None


def _name_of(path: str) -> tuple[Path | None, str]:
    directory, name = os.path.split(path)
    return Path(directory), name


def _leads_to(path: str, inode: int) -> bool:
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False
