"""The record of one enrolment: what user space knows about a pod that the maps do not.

One JSON file a pod below the instance's run directory, named after the netns cookie. The kernel
objects decide what is captured; the record adds the name, the namespace's path and the options as
the operator gave them. It is written before the pod goes live and removed after it is off, so a
record without a ``pods`` entry is an enrolment that did not finish, and so is one that says
``pending``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from nodenet.errors import NodenetError
from nodenet.paths import Instance

Backend = Literal["ebpf", "iptables"]


class ExcludedPort(msgspec.Struct, frozen=True):
    """A TCP port left alone in one direction."""

    dir: Literal["out", "in"]
    port: int


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One enrolled pod, as written to ``<run>/pods/<netns cookie>.json``."""

    schema: int = 1
    name: str
    """``NS/NAME``, or the TARGET text it was enrolled by."""
    uid: str | None = None
    node: str | None = None
    """The node whose proxy serves the pod; None on a host that is one node."""
    node_id: int = 0
    """Whose own processes may probe the pod: the id `Capture.add_host` was given."""
    netns: str
    """Path of the namespace when it was enrolled."""
    netns_inode: int
    netns_cookie: int
    pod_id: int
    ips: tuple[str, ...]
    backend: Backend
    direction: Literal["both", "out", "in"] = "both"
    dns: bool = False
    on_proxy_down: Literal["closed", "open"] = "closed"
    exclude_ports: tuple[ExcludedPort, ...] = ()
    exclude_cidrs: tuple[str, ...] = ()
    mode: Literal["pod", "ingress"] = "pod"
    existing: Literal["keep", "reset"] = "keep"
    enrolled_at: str
    """RFC 3339, UTC, microseconds."""
    tw_reuse_before: int | None = None
    """``net.ipv4.tcp_tw_reuse`` of the namespace before the enrolment; None when it was as it
    should be."""
    pending: bool = False
    """The enrolment, or a change of its options, has not finished: maps may hold more or less than
    the record says. Enrolling again finishes it."""


class RecordBroken(NodenetError):
    """A record file cannot be read."""


def record_path(instance: Instance, netns_cookie: int) -> Path:
    """Where the record of that namespace lives."""
    return instance.pods / f"{netns_cookie}.json"


def write_record(instance: Instance, record: PodRecord) -> None:
    """Writes atomically: a reader sees the old record or the new one."""
    content = msgspec.json.format(msgspec.json.encode(record))
    path = record_path(instance, record.netns_cookie)
    temporary = f"{instance.pods}/.{path.name}.{os.getpid()}"
    try:
        file = open(temporary, "wb")
    except FileNotFoundError:
        instance.pods.mkdir(parents=True, exist_ok=True)
        file = open(temporary, "wb")
    with file:
        file.write(content)
    os.replace(temporary, path)


def remove_record(instance: Instance, netns_cookie: int) -> None:
    """Removes it; nothing happens when it is gone already."""
    record_path(instance, netns_cookie).unlink(missing_ok=True)


def read_record(path: Path) -> PodRecord | None:
    """The record, or None when it has gone meanwhile; RecordBroken when it is not one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PodRecord)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise RecordBroken(f"enrolment record cannot be read: {path}: {error}") from error


def read_records(
    instance: Instance, on_broken: Callable[[RecordBroken], object] | None = None
) -> Iterator[PodRecord]:
    """Every record of the instance, by name.

    ``on_broken`` is told of each that cannot be read, and the others follow; without it the first
    such one raises RecordBroken.
    """
    found: list[PodRecord] = []
    for path in record_files(instance):
        try:
            record = read_record(path)
        except RecordBroken as error:
            if on_broken is None:
                raise
            on_broken(error)
        else:
            if record is not None:
                found.append(record)
    yield from sorted(found, key=lambda r: (r.name, r.netns_cookie))


def record_files(instance: Instance) -> list[Path]:
    """The files of all records, readable or not; the stem of each is the pod's netns cookie."""
    with contextlib.suppress(FileNotFoundError), os.scandir(instance.pods) as entries:
        names = [entry.name for entry in entries]
        return [instance.pods / n for n in sorted(names) if n[0] != "." and n.endswith(".json")]
    return []
