"""inotify(7) through ctypes: being told that a name appeared in a directory or went from it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from nodenet.kernel.errors import KernelError

CLOSE_WRITE: Final = 0x8
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
DELETE_SELF: Final = 0x400
ISDIR: Final = 0x40000000
#: The kernel's queue overflowed: anything may have happened, look again.
OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000

#: Names coming and going, renames included.
NAMES: Final = MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF
#: The same, and files whose content was written in place.
CONTENTS: Final = NAMES | CLOSE_WRITE

_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024


class WatchFailed(KernelError):
    """A directory cannot be watched: it is not there, or fs.inotify limits are reached."""


class Event(NamedTuple):
    """One change: the watched directory, what happened (a mask), the name inside."""

    directory: Path | None
    mask: int
    name: str


class Inotify:
    """One inotify instance; ``fileno`` is readable when events wait. A context manager."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            number = ctypes.get_errno()
            raise WatchFailed(
                f"inotify: {os.strerror(number)}; raise fs.inotify.max_user_instances"
            )
        self._directories: dict[int, Path] = {}

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return int(self._fd)

    def watch(self, directory: Path, mask: int = NAMES) -> None:
        """Watches a directory; one that is watched already stays so. WatchFailed."""
        wd = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), ctypes.c_uint32(mask))
        if wd < 0:
            number = ctypes.get_errno()
            hint = "raise fs.inotify.max_user_watches" if number == errno.ENOSPC else None
            raise WatchFailed(f"cannot watch {directory}: {os.strerror(number)}", hint=hint)
        self._directories[wd] = directory

    def read(self) -> list[Event]:
        """The events that wait; empty when there are none."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        events, offset = [], 0
        while offset < len(data):
            wd, mask, _cookie, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = data[offset : offset + length].rstrip(b"\0")
            offset += length
            events.append(Event(self._directories.get(wd), mask, os.fsdecode(name)))
            if mask & IGNORED:
                self._directories.pop(wd, None)
        return events

    def close(self) -> None:
        """Closes it; a second time does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
