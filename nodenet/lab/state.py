"""What is known of a lab that was made, and the lock that lets one command work on it at a time.

The state is written before the objects it names are made. So whatever happened in between,
`lab down` can end every process, remove every namespace and delete every file that may exist.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from nodenet.errors import NodenetError, NotFound
from nodenet.kernel.netns import named_path
from nodenet.lab.plan import Backend, Family, LabPlan, make_plan
from nodenet.paths import LAB_ID, Instance

SCHEMA: Final = 1

Phase = Literal["making", "up", "removing"]
Role = Literal["workload", "proxy", "client"]


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the lab. The start time tells it from a later one with the same pid."""

    role: Role
    host: str
    """Pod or node it runs in."""
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""
    log: str
    """Path of the file its output goes to."""


class LabState(msgspec.Struct, frozen=True, kw_only=True):
    """The state file. What the plan was made from, and every object that may exist."""

    schema: int = SCHEMA
    lab: str
    instance_id: str
    phase: Phase
    made_at: float
    """Unix time in seconds when `up` began."""
    nodes: int
    pods: int
    family: str
    backend: Backend
    net: str
    enroll: bool
    mesh: bool = False
    namespaces: tuple[str, ...] = ()
    cgroup: str | None = None
    """The cgroup all processes of the lab live below; None without cgroup2."""
    processes: tuple[ProcessRecord, ...] = ()

    @property
    def instance(self) -> Instance:
        """The lab's kernel objects."""
        return Instance(self.instance_id)

    def plan(self) -> LabPlan:
        """The plan this lab was made by."""
        return make_plan(
            instance_id=self.instance_id,
            nodes=self.nodes,
            pods=self.pods,
            family=Family(self.family),
            backend=self.backend,
            net=self.net,
            enroll=self.enroll,
            mesh=self.mesh,
        )


class StateBroken(NodenetError):
    """The state file is there but is not one this version can read."""


class LabNotUp(NotFound):
    """No lab of that name was made."""


def state_of(plan: LabPlan, *, now: float, cgroup: Path | None) -> LabState:
    """The intent to make that lab; ``now`` is Unix time in seconds."""
    return LabState(
        lab=plan.lab,
        instance_id=plan.instance_id,
        phase="making",
        made_at=now,
        nodes=len(plan.nodes),
        pods=len(plan.pods) // len(plan.nodes),
        family=plan.family.value,
        backend=plan.backend,
        net=str(plan.net4),
        enroll=any(p.enrolled for p in plan.pods),
        mesh=plan.mesh,
        namespaces=tuple(h.netns for h in plan.hosts),
        cgroup=None if cgroup is None else str(cgroup),
    )


@dataclass(frozen=True, slots=True)
class LabDir:
    """The lab's directory, ``/run/nodenet/lab/<name>``, and its lock beside it."""

    lab: str
    root: Path = field(default_factory=lambda: Instance().run / "lab")

    @property
    def path(self) -> Path:
        """The directory; it exists as long as the lab does."""
        return self.root / self.lab

    @property
    def state_path(self) -> Path:
        """The state file."""
        return self.path / "state.json"

    @property
    def hosts_path(self) -> Path:
        """What pods see as /etc/hosts."""
        return self.path / "hosts"

    @property
    def lock_path(self) -> Path:
        """The lock file, beside the directory so that the directory can go while it is held."""
        return self.root / f".{self.lab}.lock"

    @property
    def mesh_path(self) -> Path:
        """The static mesh that the proxies share.

        In a directory of its own: they watch it, and the state file changes often.
        """
        return self.path / "mesh" / "mesh.yaml"

    @property
    def ca_path(self) -> Path:
        """Directory of the embedded CA that the proxies share."""
        return self.path / "ca"

    @property
    def capture_path(self) -> Path:
        """The packets between the nodes during the last demo."""
        return self.path / "wire.pcap"

    @property
    def logs(self) -> Path:
        """Directory of the processes' output, one file a process."""
        return self.path / "log"

    def read(self) -> LabState | None:
        """The state, or None when there is no lab. Raises StateBroken."""
        try:
            state = msgspec.json.decode(self.state_path.read_bytes(), type=LabState)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StateBroken(
                f"lab state cannot be read: {self.state_path}: {error}",
                hint="remove the lab: sudo nodenet lab down",
            ) from error
        if state.schema != SCHEMA:
            raise StateBroken(
                f"lab state is schema {state.schema}, not {SCHEMA}: {self.state_path}",
                hint="remove the lab with the nodenet that made it",
            )
        return state

    def require(self) -> LabState:
        """The state of a lab that is there; LabNotUp names the directory that is not."""
        state = self.read()
        if state is None:
            raise LabNotUp(f"lab is not up: no {self.path}", hint=f"run: {self._up_command()}")
        return state

    def _up_command(self) -> str:
        option = "" if self.lab == "default" else f" --id {self.lab}"
        return f"sudo nodenet lab up{option}"

    def write(self, state: LabState) -> None:
        """Writes atomically and durably enough for a kill: a reader sees old or new."""
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = self.state_path.with_name(".state.json.new")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        temporary.replace(self.state_path)

    def remove(self) -> None:
        """Removes the directory, the state file last, and the parents when they are empty."""
        for directory in (self.logs, self.mesh_path.parent, self.ca_path):
            shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            for entry in self.path.iterdir():
                if entry != self.state_path:
                    entry.unlink()
            self.state_path.unlink(missing_ok=True)
            self.path.rmdir()

    @contextlib.contextmanager
    def locked(self, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lab's lock; ``on_wait`` is called once when somebody else holds it.

        The lock file is removed at the end when the lab is gone, so that `lab down` leaves
        nothing; whoever got a lock on the removed file notices and takes the new one.
        """
        lock = self.lock_path
        while True:
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # a finishing `down` removed the directory meanwhile
                continue
            try:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if on_wait is not None:
                        on_wait()
                        on_wait = None
                    fcntl.flock(fd, fcntl.LOCK_EX)
                if not _is_file(fd, lock):
                    continue
                try:
                    yield
                finally:
                    if not self.path.exists():
                        lock.unlink(missing_ok=True)
                        for parent in (self.root, self.root.parent):
                            with contextlib.suppress(OSError):
                                parent.rmdir()
                return
            finally:
                os.close(fd)


def _is_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def every_lab(root: Path | None = None) -> list[str]:
    """Names of the labs that were made on this machine, sorted."""
    where = LabDir(LAB_ID).root if root is None else root
    if not where.is_dir():
        return []
    return sorted(e.name for e in where.iterdir() if e.is_dir())


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """Where a lab's pod is: what a command needs to enrol it by name."""

    name: str
    """``lab/a1``."""
    netns: Path
    node: str
    node_number: int
    """The node id its capture entries carry."""


def pod_places(instance: Instance | None = None, root: Path | None = None) -> list[PodPlace]:
    """Every pod of every lab, or of the one with that instance, enrolled or not.

    A lab whose state cannot be read is passed over.
    """
    found = []
    for lab in every_lab(root):
        directory = LabDir(lab) if root is None else LabDir(lab, root)
        with contextlib.suppress(StateBroken):
            state = directory.read()
            if state is None or instance not in (None, state.instance):
                continue
            plan = state.plan()
            found += [
                PodPlace(
                    name=pod.full_name,
                    netns=named_path(pod.netns),
                    node=pod.node,
                    node_number=plan.node(pod.node).number,
                )
                for pod in plan.pods
            ]
    return found
