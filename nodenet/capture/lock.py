"""One writer at a time per instance: enrolments, un-enrolments, loading, reaping.

An flock, so a killed process never leaves it held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from nodenet.capture.errors import Busy
from nodenet.errors import NotPermitted
from nodenet.paths import Instance

LOCK_DEADLINE_SECONDS = 30.0
_RETRY_SECONDS = 0.005


def _is_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)


@contextlib.contextmanager
def instance_lock(
    instance: Instance, deadline_seconds: float = LOCK_DEADLINE_SECONDS
) -> Iterator[None]:
    """Holds the instance's write lock; `Busy` when another process keeps it past the deadline."""
    path = instance.run / "capture.lock"
    try:
        fd = _open(path)
    except PermissionError as error:
        raise NotPermitted(f"cannot write {path}: permission denied; run with sudo") from error
    try:
        end = time.monotonic() + deadline_seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_file(fd, path):
                    break
                # the instance was removed meanwhile, its lock file with it: take the new one
                os.close(fd)
                fd = _open(path)
            except BlockingIOError:
                if time.monotonic() > end:
                    holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                    raise Busy(
                        f"instance {instance.name} is being changed by pid {holder}: {path}; "
                        f"waited {deadline_seconds:.0f} s, try again"
                    ) from None
                # flock has no deadline of its own; another writer holds it for milliseconds
                time.sleep(_RETRY_SECONDS)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)
