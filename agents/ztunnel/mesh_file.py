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

#: Seconds of quiet before a change is read: whoever writes several files gets one reload.
SETTLE_SECONDS: Final = 0.1

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
            self._load()
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
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(SETTLE_SECONDS, self._reload)

    def _reload(self) -> None:
        self._timer = None
        try:
            changed = self._load()
        except NodenetError as error:
            if error.line() != self.error:
                self.error = error.line()
                logger.error("mesh file not in force, what was known stays: %s", self.error)
        else:
            if changed:
                logger.info("mesh file %s is in force: version %d", self.path, self._state.version)

    def _load(self) -> bool:
        """Brings the file into force; False when it is as it was. NodenetError."""
        mesh = static_file.load(self.path)
        resources: tuple[Resource, ...] = (*mesh.workloads, *mesh.services, *mesh.policies)
        self.error = None
        if resources == self._resources:
            return False
        self._resources = resources
        self.mesh, self.loaded_ns = mesh, time.time_ns()
        self._state.replace(resources)
        self.loads += 1
        return True
