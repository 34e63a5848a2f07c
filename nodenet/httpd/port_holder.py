"""Who listens on a port of this namespace. Asked only when a port is taken."""

from __future__ import annotations

import contextlib
import os
from typing import Final

_LISTEN: Final = 10


def holder_of(port: int) -> tuple[int, str] | None:
    """Process id and name; None when it cannot be told (no right to look, another namespace)."""
    with contextlib.suppress(Exception):  # the error that led here is the one to show
        from nodenet.conns.owners import socket_owners
        from nodenet.kernel.sock_diag import dump_tcp

        inodes = {s.inode for s in dump_tcp({_LISTEN}) if s.local_port == port}
        namespace = os.stat("/proc/self/ns/net").st_ino
        for process in socket_owners(inodes, namespace).values():
            return process.pid, process.comm
    return None
