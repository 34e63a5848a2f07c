"""What a test run must not leave behind: namespaces, pins, cgroups, run directories, processes.

Names are compared with those of the session's start. Another run on the same machine makes such
names too, so every run holds a lock that can be shared; only a run that finds itself alone at the
end can say whose the leftovers are. Processes are told by an environment variable they inherit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodenet.errors import NodenetError
from nodenet.kernel.cgroups import cgroup2_mount
from nodenet.kernel.netns import RUN_NETNS
from nodenet.paths import BPFFS, RUN

_LOCK: Final = Path("/run/lock/nodenet-tests")
SESSION: Final = "NODENET_TEST_SESSION"
#: Processes that have been told to end need a moment; so does the kernel to free a namespace.
GRACE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02


class Watch:
    """Made when the session starts, asked when it has ended."""

    def __init__(self, lock: Path = _LOCK) -> None:
        self._token = secrets.token_hex(8)
        os.environ[SESSION] = self._token
        lock.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._before = frozenset(_objects())

    def left_behind(self, grace_seconds: float = GRACE_SECONDS) -> list[str]:
        """What is there that was not, by name; ends the watch."""
        end = time.monotonic() + grace_seconds
        while (found := self._look()) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        os.close(self._lock)
        return found

    def _look(self) -> list[str]:
        found = [f"process {pid}: {line}" for pid, line in _processes(self._token)]
        if self._alone():
            found += sorted(set(_objects()) - self._before)
        return found

    def _alone(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            # also after a refusal: an upgrade gives the old lock up first (flock(2))
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        return True


def _objects() -> Iterator[str]:
    places = [(RUN_NETNS, "nn-*"), (BPFFS, "nodenet*"), (RUN, "nodenet*")]
    with contextlib.suppress(NodenetError):
        places.append((cgroup2_mount(), "nodenet*"))
    for directory, pattern in places:
        for path in directory.glob(pattern):
            yield str(path)


def _processes(token: str) -> Iterator[tuple[int, str]]:
    """Living descendants of this session, also those that no longer have us as an ancestor."""
    wanted = f"{SESSION}={token}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            # empty for zombies and kernel threads
            if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                line = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield int(entry.name), line.strip()
