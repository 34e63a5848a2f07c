"""The agent's life: load, enrol, watch namespaces go, end without touching what is captured.

Its only state is in the kernel and in the enrolment records, so it may be killed at any moment: the
next one adopts the pins and goes on. Every few seconds it makes the two agree (`Node.look`).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodenet.agents.node.node import Node, NodeConfig
from nodenet.capture.records import PodRecord
from nodenet.errors import NodenetError
from nodenet.kernel.inotify import Inotify, WatchFailed
from nodenet.paths import Instance

__all__ = ["AlreadyRunning", "NodeConfig", "node_lock", "run"]

logger = logging.getLogger(__name__)

#: A namespace without a name (a container's, by /proc/PID) goes unseen by inotify: look anyway.
REAP_SECONDS = 5.0
#: After a name went, its namespace may need a moment until its last process has ended.
SETTLE_SECONDS = 0.2


class AlreadyRunning(NodenetError):
    """Another agent serves this instance."""


@contextmanager
def node_lock(instance: Instance) -> Iterator[None]:
    """Holds ``node.lock``; AlreadyRunning names the process that does."""
    instance.run.mkdir(parents=True, exist_ok=True)
    path = instance.run / "node.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            raise AlreadyRunning(f"already running: pid {holder} holds {path}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)


def run(config: NodeConfig) -> int | None:
    """Runs until SIGTERM or SIGINT; how many pods stay captured, None when nothing is loaded."""
    with node_lock(config.instance), _signals() as stop_fd, Inotify() as changes:
        with contextlib.closing(Node.start(config)) as node:
            _notify_ready()
            logger.info("ready: instance %s", config.instance.name)
            return _serve(node, stop_fd, changes)


def _serve(node: Node, stop_fd: int, changes: Inotify) -> int | None:
    poll = select.poll()
    poll.register(stop_fd, select.POLLIN)
    poll.register(changes.fileno(), select.POLLIN)
    watched: set[Path] = set()
    _watch(changes, watched, node.records())
    # it has looked when it started; the names that went before they were watched are seen next
    due = time.monotonic() + SETTLE_SECONDS
    while True:
        if time.monotonic() >= due:
            node.look()
            _watch(changes, watched, node.records())
            due = time.monotonic() + REAP_SECONDS
        ready = {fd for fd, _ in poll.poll(max(0.0, due - time.monotonic()) * 1000)}
        if stop_fd in ready:
            return len(node.records()) if node.is_loaded else None
        if changes.fileno() in ready and changes.read():
            due = min(due, time.monotonic() + SETTLE_SECONDS)


def _watch(changes: Inotify, watched: set[Path], records: list[PodRecord]) -> None:
    for record in records:
        directory = Path(record.netns).parent
        if directory in watched or directory.is_relative_to("/proc"):
            continue
        try:
            changes.watch(directory)
        except WatchFailed as error:
            logger.warning("%s; looking every %.0f s only", error, REAP_SECONDS)
        watched.add(directory)


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that becomes readable on SIGTERM or SIGINT."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno())
    handlers = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield reader.fileno()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        reader.close()
        writer.close()


def _notify_ready() -> None:
    """Tells systemd (sd_notify) when it started us."""
    where = os.environ.get("NOTIFY_SOCKET")
    if where:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            notifier.connect(f"\0{where[1:]}" if where.startswith("@") else where)
            notifier.send(b"READY=1")
