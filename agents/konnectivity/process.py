"""What both daemons need of their process: descriptors, the admin socket, the wishes to end."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import resource
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nodenet.errors import NodenetError
from nodenet.httpd.sockets import UnixListener, open_unix
from nodenet.rpc.malloc import GIVE_BACK_SECONDS, give_back

#: Whose members may ask at the Unix socket without being root (docs/cli.md, admin surfaces).
GROUP: Final = "nodenet"
_WANTED_FILES: Final = 1 << 20

logger = logging.getLogger(__name__)


class StopSignals:
    """The wishes to end: the first one drains, the second one ends. Usable without signals."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def request(self) -> None:
        """One more wish."""
        if self.first.is_set():
            self.second.set()
        self.first.set()

    @contextlib.contextmanager
    def caught(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Takes SIGTERM and SIGINT as wishes."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.request)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def admin_listener(path: Path, *, wanted: bool) -> list[UnixListener]:
    """The Unix socket; none where it may not be made and nobody asked for it."""
    try:
        try:
            group: int | None = grp.getgrnam(GROUP).gr_gid
        except KeyError:
            group = None
        return [open_unix(path, "give another --admin-socket", group=group)]
    except NodenetError as error:
        if wanted:
            raise
        logger.info("no admin socket: %s", error.line())
        return []


def close_all(listeners: Sequence[socket.socket | UnixListener]) -> None:
    """Closes sockets, also those that are closed, and removes the files of Unix sockets."""
    for each in listeners:
        if isinstance(each, UnixListener):
            each.remove()
            each.sock.close()
        else:
            each.close()


@contextlib.contextmanager
def memory_given_back(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Gives memory that is not used any more back, now and then inside the block."""

    timer: asyncio.TimerHandle

    def wait() -> None:
        nonlocal timer
        timer = loop.call_later(GIVE_BACK_SECONDS, turn)

    def turn() -> None:
        give_back()
        wait()

    wait()
    try:
        yield
    finally:
        timer.cancel()


def raise_file_limit() -> None:
    """Raises the number of descriptors as far as allowed: a tunnel is one in each daemon."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (_WANTED_FILES, hard):
        if soft >= wanted:
            return
        with contextlib.suppress(ValueError, OSError):  # no right to, or over fs.nr_open
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
            return
