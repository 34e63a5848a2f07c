"""Where the proxy learns which pods to serve: the enrolment records of its instance.

`PodSource` is the seam for another source (ZDS, where a node agent sends each pod with its
namespace). The one here reads the record directory and hears of changes by inotify.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodenet.agents.ztunnel.namespaces import NamespaceWatch
from nodenet.agents.ztunnel.pod import Pod, PodRefused, pod_of_record
from nodenet.agents.ztunnel.worker import Worker
from nodenet.capture.records import PodRecord, read_record
from nodenet.errors import NodenetError, NotSupported
from nodenet.kernel import inotify
from nodenet.kernel.inotify import Event, Inotify
from nodenet.kernel.netns import NetNs
from nodenet.paths import Instance

#: Seconds before a pod that could not be served is tried again: first, and at most.
RETRY_SECONDS: Final = (0.5, 30.0)

logger = logging.getLogger(__name__)


class PodSource(Protocol):
    """Tells a worker of its pods, from `start` until `close`."""

    async def start(self, worker: Worker) -> None:
        """Returns when the worker has been told of the pods there are now."""

    def close(self) -> None:
        """Tells no more; the worker keeps its pods."""


@dataclass(slots=True, eq=False)
class _File:
    """What is known about one record file."""

    name: str
    record: PodRecord | None = None
    """The record as it is served; None while it is not."""
    pod: Pod | None = None
    complaint: str = ""
    """Why it is not served, as logged."""
    wait: float = RETRY_SECONDS[0]
    retry: asyncio.TimerHandle | None = None


class RecordPodSource:
    """The pods of one node, by the records in the instance's directory."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, instance: Instance, node: str | None
    ) -> None:
        """``node`` None means the records that name no node."""
        self._loop = loop
        self._directory = instance.pods
        self._node = node
        self._files: dict[str, _File] = {}
        self._worker: Worker | None = None
        self._inotify = Inotify()
        self._namespaces = NamespaceWatch(loop, self._inotify, self._namespace_gone)
        self._above: Path | None = None
        """The nearest directory that exists, while there is no record directory."""

    async def start(self, worker: Worker) -> None:
        """See `PodSource.start`. Pods that cannot be served are logged and tried again."""
        self._worker = worker
        self._loop.add_reader(self._inotify.fileno(), self._on_inotify)
        self._find_directory()

    def close(self) -> None:
        """See `PodSource.close`."""
        self._loop.remove_reader(self._inotify.fileno())
        self._namespaces.close()
        for file in self._files.values():
            self._no_retry(file)
        self._inotify.close()

    @property
    def pending(self) -> list[str]:
        """Names of the record files whose pods cannot be served and are tried again."""
        return sorted(name for name, file in self._files.items() if file.retry is not None)

    def _find_directory(self) -> None:
        """Watches the record directory, or the place where it will appear, and reads it."""
        self._above = None
        while not self._watches(self._directory):
            above = next(p for p in self._directory.parents if p.is_dir())
            # what appeared before the watch was there is looked for once more
            if self._watches(above) and not _child_towards(above, self._directory).is_dir():
                self._above = above
                break
        self._read_all()

    def _watches(self, directory: Path) -> bool:
        """Whether it is watched now; False when it is not there. WatchFailed at a limit."""
        try:
            self._inotify.watch(directory)
        except inotify.WatchFailed:
            if directory.is_dir():
                raise
            return False
        return True

    def _on_inotify(self) -> None:
        for event in self._inotify.read():
            self._namespaces.on_event(event)
            if event.mask & inotify.OVERFLOW:
                self._read_all()
            elif event.directory == self._directory:
                self._on_record_event(event)
            elif event.directory == self._above:
                self._find_directory()

    def _on_record_event(self, event: Event) -> None:
        if event.mask & inotify.IGNORED:  # the directory itself is gone
            self._find_directory()
        elif _is_record(event.name):
            self._read(event.name)

    def _read_all(self) -> None:
        there: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            there = [name for name in os.listdir(self._directory) if _is_record(name)]
        for name in sorted({*there, *self._files}):
            self._read(name)

    def _read(self, name: str) -> None:
        """Brings what is served in line with one record."""
        file = self._files.setdefault(name, _File(name))
        self._no_retry(file)
        try:
            record = read_record(self._directory / name)
            if record is None or record.node != self._node:
                del self._files[name]
                self._remove(file)
                return
            self._apply(file, record)
            file.complaint, file.wait = "", RETRY_SECONDS[0]
        except (NodenetError, OSError) as error:  # OSError: descriptors, memory
            # what is served already stays as it is
            self._complain(file, error.line() if isinstance(error, NodenetError) else str(error))
            file.retry = self._loop.call_later(file.wait, self._read, name)
            file.wait = min(file.wait * 2, RETRY_SECONDS[1])

    def _apply(self, file: _File, record: PodRecord) -> None:
        assert self._worker is not None
        pod = pod_of_record(record)
        if file.record is not None and _same_namespace(file.record, record):
            if pod != file.pod:
                self._worker.change_pod(pod)
            file.record, file.pod = record, pod
            return
        self._remove(file)
        netns = _open(record)
        try:
            self._worker.add_pod(pod, netns)
        except BaseException:
            netns.close()
            raise
        file.record, file.pod = record, pod
        self._namespaces.watch(record.netns_cookie, record.netns, record.netns_inode)

    def _remove(self, file: _File) -> None:
        # The namespace stays watched: connections that outlive the enrolment end with it.
        if file.record is not None and self._worker is not None:
            self._worker.remove_pod(file.record.netns_cookie)
        file.record = file.pod = None

    def _namespace_gone(self, cookie: int) -> None:
        assert self._worker is not None
        self._worker.cut_pod(cookie)
        for file in self._files.values():
            if file.record is not None and file.record.netns_cookie == cookie:
                file.record = file.pod = None

    def _complain(self, file: _File, line: str) -> None:
        if line != file.complaint:
            file.complaint = line
            logger.warning("cannot serve pod of %s: %s", self._directory / file.name, line)

    @staticmethod
    def _no_retry(file: _File) -> None:
        if file.retry is not None:
            file.retry.cancel()
            file.retry = None


def _open(record: PodRecord) -> NetNs:
    """The record's namespace, making sure that it is the one that was enrolled."""
    netns = NetNs.open(record.netns)
    try:
        if netns.is_host():
            raise PodRefused(f"pod {record.name}: {record.netns} is the host's own namespace")
        with contextlib.suppress(NotSupported):  # before Linux 5.14 the inode has to do
            if netns.cookie() != record.netns_cookie:
                raise _changed(record)
        if netns.inode != record.netns_inode:
            raise _changed(record)
    except BaseException:
        netns.close()
        raise
    return netns


def _changed(record: PodRecord) -> PodRefused:
    return PodRefused(
        f"pod {record.name}: {record.netns} is another namespace than the one enrolled",
        hint=f"nodenet capture unenroll {record.name}, then enroll it again",
    )


def _same_namespace(one: PodRecord, other: PodRecord) -> bool:
    return (one.netns_cookie, one.netns_inode, one.netns) == (
        other.netns_cookie,
        other.netns_inode,
        other.netns,
    )


def _child_towards(above: Path, below: Path) -> Path:
    """The first step on the way from ``above`` down to ``below``."""
    return above / below.relative_to(above).parts[0]


def _is_record(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")
