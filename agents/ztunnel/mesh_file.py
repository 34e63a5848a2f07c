"""The static mesh file: read, watched, read again when it changes.

A file that cannot be understood changes nothing: what was known stays in force, and the log says
which line is wrong. The directory is watched, not the file, because files are replaced by rename
(an editor, a ConfigMap's symbolic links).
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Final

from nodenet.errors import NodenetError
from nodenet.kernel import inotify
from nodenet.kernel.inotify import Inotify
from nodenet.mesh import static_file
from nodenet.mesh.state import MeshState, Resource

#: Seconds of quiet before a change is read: whoever writes several files gets one reload. It is not
#: waited for longer than the second time, since others may write to the same directory for ever.
SETTLE_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


class MeshFile:
    """Keeps a state as one file says. The file is all there is: what it no longer names goes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path, state: MeshState) -> None:
        self._loop = loop
        self.path = path
        self._state = state
        self._resources: tuple[Resource, ...] | None = None
        self._inotify: Inotify | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changing_since: float | None = None
        self._reading = False
        self._stamp: _Stamp | None = None
        self.error: str | None = None
        """Why the file as it is now is not in force; None when it is."""
        self.mesh = static_file.StaticMesh()
        """What is in force."""
        self.loaded_ns = 0
        """Unix time of the last change that came into force."""
        self.loads = 0
        """How often a changed file came into force."""

    def start(self) -> None:
        """Reads the file, which must be good, and watches it from then on. NodenetError."""
        watch = Inotify()
        try:
            watch.watch(self.path.parent, inotify.CONTENTS)
            self._stamp = _stamp(self.path)
            self._apply(static_file.load(self.path))
        except BaseException:
            watch.close()
            raise
        self._inotify = watch
        self._loop.add_reader(watch.fileno(), self._changed)

    def close(self) -> None:
        """Watches no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    def _changed(self) -> None:
        assert self._inotify is not None
        self._inotify.read()  # whatever it was, the content decides
        now = self._loop.time()
        if self._changing_since is None:
            self._changing_since = now
        if self._timer is not None:
            self._timer.cancel()
        wait = min(SETTLE_SECONDS, self._changing_since + PATIENCE_SECONDS - now)
        self._timer = self._loop.call_later(max(wait, 0.0), self._reload)

    def _reload(self) -> None:
        """Reads the file if it is another one, in a thread: a large one takes seconds, in which
        connections would stand still.
        """
        self._timer = self._changing_since = None
        if self._reading:  # and looked at again when that is done
            return
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self._reading = True
        future = self._loop.run_in_executor(None, static_file.load, self.path)
        future.add_done_callback(self._read)

    def _read(self, future: asyncio.Future[static_file.StaticMesh]) -> None:
        self._reading = False
        if self._inotify is None or future.cancelled():
            return
        try:
            changed = self._apply(future.result())
        except NodenetError as error:
            if error.line() != self.error:
                self.error = error.line()
                logger.error("mesh file not in force, what was known stays: %s", self.error)
        else:
            if changed:
                logger.info("mesh file %s is in force: version %d", self.path, self._state.version)
        self._reload()

    def _apply(self, mesh: static_file.StaticMesh) -> bool:
        """Brings what was read into force; False when it is as it was. NodenetError."""
        resources: tuple[Resource, ...] = (*mesh.workloads, *mesh.services, *mesh.policies)
        self.error = None
        if resources == self._resources:
            return False
        self._resources = resources
        self.mesh, self.loaded_ns = mesh, time.time_ns()
        self._state.replace(resources)
        self.loads += 1
        return True


#: Which file it is, and in which state.
_Stamp = tuple[int, ...]


def _stamp(path: Path) -> _Stamp | None:
    """None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
