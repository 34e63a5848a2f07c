"""Removing a lab, whatever state it is in: up, half made, half removed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from nodenet.errors import NodenetError
from nodenet.kernel import netns
from nodenet.lab import capture_glue, cgroups, processes
from nodenet.lab.plan import owns_namespace
from nodenet.lab.state import LabDir, LabState, StateBroken
from nodenet.lab.topology import remove_namespace
from nodenet.paths import LAB_ID, Instance

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What `down` removed."""

    lab: str
    namespaces: int
    processes: int
    """Recorded ones; commands that `lab exec` started are ended too, but not counted."""


class LabStays(NodenetError):
    """Something of the lab could not be removed."""


class InsideLab(NodenetError):
    """The command itself runs inside what it should remove."""


def leftovers(lab: str) -> list[str]:
    """Namespaces that can only be this lab's, by name."""
    return [name for name in netns.names() if owns_namespace(lab, name)]


def remains(directory: LabDir, state: LabState | None = None) -> list[str]:
    """Every trace of the lab on this machine; empty when it never was, or is gone."""
    instance = _instance(directory, state)
    cgroup = _cgroup(instance, state)
    paths = [directory.state_path, instance.run, instance.pins, *([cgroup] if cgroup else [])]
    alive = [p for p in (state.processes if state else ()) if processes.alive(p)]
    return [
        *(str(path) for path in paths if path.exists()),
        *(f"namespace {name}" for name in leftovers(directory.lab)),
        *(f"{p.role} of {p.host} (pid {p.pid})" for p in alive),
    ]


def down(directory: LabDir, on_wait: Callable[[], None] | None = None) -> Removed | None:
    """Removes the lab, and looks that nothing is left; None when there was nothing to remove.

    Everything is tried even when one thing cannot be removed; then the first error is raised and
    the state stays, so that it can be tried again. Processes go first (the recorded ones are asked
    politely, whatever was started by hand inside is killed), then the capture, then namespaces.
    Raises InsideLab when called from a shell inside the lab.
    """
    if not _anything(directory):
        return None
    with directory.locked(on_wait):
        try:
            state = directory.read()
        except StateBroken:
            state = None
        if not directory.path.exists() and not leftovers(directory.lab):
            return None  # somebody else was faster, or a killed `up` left its lock file alone
        return remove_locked(directory, state)


def _anything(directory: LabDir) -> bool:
    return directory.path.exists() or directory.lock_path.exists() or bool(leftovers(directory.lab))


def remove_locked(directory: LabDir, state: LabState | None) -> Removed:
    """As `down`, for a caller that holds the lock. ``state`` None: known by its name alone."""
    lab = directory.lab
    _refuse_inside(lab)
    instance = _instance(directory, state)
    cgroup = _cgroup(instance, state)
    recorded = state.processes if state else ()
    if state is not None:
        directory.write(msgspec.structs.replace(state, phase="removing"))
    namespaces = leftovers(lab)
    steps: list[Callable[[], object]] = [
        partial(processes.end, recorded),
        *([partial(cgroups.kill_tree, cgroup)] if cgroup else []),
        partial(capture_glue.remove, instance),
        *(partial(remove_namespace, name) for name in namespaces),
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
    left = remains(directory, state)
    if left:
        raise LabStays(f"lab {lab} is not removed whole: {', '.join(left)} is still there")
    return Removed(lab=lab, namespaces=len(namespaces), processes=len(recorded))


def _instance(directory: LabDir, state: LabState | None) -> Instance:
    if state is not None:
        return state.instance
    return Instance(LAB_ID if directory.lab == "default" else directory.lab)


def _cgroup(instance: Instance, state: LabState | None) -> Path | None:
    return Path(state.cgroup) if state and state.cgroup else cgroups.lab_cgroup(instance)


def _refuse_inside(lab: str) -> None:
    """A shell inside the lab would be killed half-way, and sees mounts of its own."""
    own = netns.NetNs.current()
    with own:
        for name in leftovers(lab):
            with contextlib.suppress(FileNotFoundError):
                if netns.named_path(name).stat().st_ino == own.inode:
                    raise InsideLab(
                        f"this shell runs inside lab {lab}: {name}", hint="leave it first: exit"
                    )
