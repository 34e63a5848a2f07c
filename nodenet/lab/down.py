"""Removing a lab, whatever state it is in: up, half made, half removed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from nodenet.kernel import netns
from nodenet.lab import capture_glue, cgroups, processes
from nodenet.lab.plan import owns_namespace
from nodenet.lab.state import LabDir, LabState, StateBroken
from nodenet.lab.topology import remove_namespace
from nodenet.paths import LAB_ID, Instance

logger = logging.getLogger(__name__)


def leftovers(lab: str) -> list[str]:
    """Namespaces that can only be this lab's, by name."""
    return [name for name in netns.names() if owns_namespace(lab, name)]


def down(directory: LabDir, on_wait: Callable[[], None] | None = None) -> bool:
    """Removes the lab; False when there was nothing to remove.

    Everything is tried even when one thing cannot be removed; then the first error is raised and
    the state stays, so that it can be tried again. Processes go first (the recorded ones are asked
    politely, whatever was started by hand inside is killed), then the capture, then namespaces.
    """
    if not _anything(directory):
        return False
    with directory.locked(on_wait):
        try:
            state = directory.read()
        except StateBroken:
            state = None
        if not directory.path.exists() and not leftovers(directory.lab):
            return False  # somebody else was faster, or a killed `up` left its lock file alone
        remove_locked(directory, state)
    return True


def _anything(directory: LabDir) -> bool:
    return directory.path.exists() or directory.lock_path.exists() or bool(leftovers(directory.lab))


def remove_locked(directory: LabDir, state: LabState | None) -> None:
    """As `down`, for a caller that holds the lock. ``state`` None: known by its name alone."""
    lab = directory.lab
    instance = state.instance if state else Instance(LAB_ID if lab == "default" else lab)
    if state is not None:
        directory.write(msgspec.structs.replace(state, phase="removing"))
    cgroup = Path(state.cgroup) if state and state.cgroup else cgroups.lab_cgroup(instance)
    recorded = state.namespaces if state else ()
    steps: list[Callable[[], object]] = [
        partial(processes.end, state.processes if state else ()),
        *([partial(cgroups.kill_tree, cgroup)] if cgroup else []),
        partial(capture_glue.remove, instance),
        *(partial(remove_namespace, n) for n in dict.fromkeys([*recorded, *leftovers(lab)])),
        *([partial(cgroups.remove_tree, cgroup)] if cgroup else []),
    ]
    failed: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:  # whatever it is, the other things must not stay for it
            logger.debug("removing lab %s: %s", lab, error, exc_info=True)
            failed.append(error)
    if failed:
        raise failed[0]
    directory.remove()
