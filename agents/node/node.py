"""What the agent does about its instance: hold it open, forget what is gone, put back what is lost.

Other processes change the instance too: commands enrol and un-enrol, remove all of it, load it
again. Each round starts from what is pinned and recorded then, and no fault of one pod stops the
others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nodenet.capture import reaping
from nodenet.capture.lock import instance_lock
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import PodRecord, read_records, record_files
from nodenet.capture.restoring import enrol_again, restore
from nodenet.capture.session import Capture
from nodenet.capture.targets import resolve_target
from nodenet.errors import NodenetError, NotFound
from nodenet.kernel.maps import Map
from nodenet.paths import Instance

logger = logging.getLogger(__name__)

#: Another writer is let finish; the next round comes soon, and SIGTERM is not to wait for long.
LOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What ``nodenet node run`` was asked for."""

    instance: Instance
    enroll: tuple[str, ...] = ()
    """TARGETs to enrol at start: those known with the options they have, others with defaults."""
    agent_cgroup: Path | None = None
    upgrade_pins: bool = False
    """Rebuild pins of another schema; their statistics are lost, their pods are enrolled again."""


class Node:
    """The agent's hold on one instance. Made by `start`; `close` changes nothing in the kernel."""

    def __init__(self, config: NodeConfig, capture: Capture) -> None:
        self._config = config
        self._instance = config.instance
        self._capture: Capture | None = capture
        self._said: set[str] = set()
        self._said_before: set[str] = set()

    @classmethod
    def start(cls, config: NodeConfig) -> Self:
        """Loads the instance, looks once, enrols what the configuration names."""
        node = cls(config, _open(config))
        try:
            node.look()
            node._enroll(config.enroll)
        except BaseException:
            node.close()
            raise
        return node

    @property
    def is_loaded(self) -> bool:
        """Whether the instance was there when it looked last."""
        return self._capture is not None

    def close(self) -> None:
        """Closes the descriptors."""
        if self._capture is not None:
            self._capture.close()
            self._capture = None

    def records(self) -> list[PodRecord]:
        """Every enrolment that can be read."""
        return list(read_records(self._instance, on_broken=lambda _: None))

    def look(self) -> None:
        """One round: forgets pods that are gone, enrols again those that ought to be captured."""
        self._said_before, self._said = self._said, set()
        try:
            capture = self._follow()
            if capture is None:
                return
            with instance_lock(self._instance, LOCK_SECONDS):
                removed = reaping.reap(self._instance, capture.maps, self._tell)
            for record in removed:
                logger.info("namespace of %s is gone: %s", record.name, record.netns)
            again = restore(self._instance, capture.maps, self._tell, deadline_seconds=LOCK_SECONDS)
            for record in again:
                logger.info("captured again: %s", record.name)
        except NodenetError as error:
            self._tell(error.line())
        except OSError as error:
            self._tell(str(error))

    def _follow(self) -> Capture | None:
        """The instance as it is pinned now; None when it has been removed on purpose."""
        if self._capture is not None and not self._is_pinned(self._capture):
            self._capture.close()
            self._capture = None
        if self._capture is None:
            if not self._instance.exists() and not self._is_missed():
                self._tell(f"instance {self._instance.name} was removed; waiting for an enrolment")
                return None
            self._capture = self._reopen()
            logger.info("instance %s was loaded anew; taken over", self._instance.name)
        return self._capture

    def _reopen(self) -> Capture:
        try:
            # as it is: who loaded it may be a newer version than this process
            return Capture.open(self._instance)
        except NotFound:
            return Capture.open_or_load(self._instance, agent_cgroup=self._config.agent_cgroup)

    def _is_pinned(self, capture: Capture) -> bool:
        try:
            with Map.open(self._instance.maps / "pods") as pinned:
                return pinned.id == capture.maps["pods"].id
        except NotFound:
            return False

    def _is_missed(self) -> bool:
        """Whether there are enrolments without pins: a removal or an upgrade did not finish."""
        if not record_files(self._instance):
            return False
        # a removal under way takes the records too; when it is over, they are gone
        with instance_lock(self._instance, LOCK_SECONDS):
            return bool(record_files(self._instance))

    def _enroll(self, targets: Sequence[str]) -> None:
        if self._capture is None:
            return
        for text in targets:
            target = resolve_target(text, self.records())
            known = target.record
            if known is None:
                result = self._capture.enroll(
                    target.netns_path, name=target.name, options=EnrolOptions()
                )
            else:
                found = enrol_again(self._instance, self._capture.maps, known.netns_cookie)
                if found is None:
                    raise NotFound(
                        f"cannot enroll {text}: the namespace of {known.name} is gone; "
                        f"run: nodenet capture unenroll {known.name}"
                    )
                result = found
            logger.info("%s %s", result.outcome, result.record.name)

    def _tell(self, line: str) -> None:
        """Logs what an operator should know, once as long as it lasts."""
        if line not in self._said_before and line not in self._said:
            logger.warning("%s", line)
        self._said.add(line)


def _open(config: NodeConfig) -> Capture:
    if config.upgrade_pins:
        from nodenet.capture.upgrade import open_upgraded

        return open_upgraded(config.instance, agent_cgroup=config.agent_cgroup)
    return Capture.open_or_load(config.instance, agent_cgroup=config.agent_cgroup)
