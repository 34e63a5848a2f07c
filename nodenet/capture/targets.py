"""TARGET: the ways to name a pod, and what namespace each leads to.

    NAME  NS/NAME     an enrolled pod; a prefix of NAME is enough when it is unique
    uid:U             an enrolled pod by its Kubernetes UID
    pid:N             the namespace a process is in
    netns:PATH        a namespace by its file
    cgroup:PATH       of the processes in a cgroup, absolute or below the v2 mount
    unit:nginx        of the processes of a systemd unit
    container:ID      of the processes of a container, by an ID's first characters

What is named by its processes is resolved to a lasting path where there is one, for the process
may end before its namespace does.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodenet.capture.errors import HostNamespace
from nodenet.capture.records import PodRecord
from nodenet.errors import NotFound, NotPermitted, UsageError
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.netns import NetNs, NetNsGone, host_path

#: Where runtimes keep namespaces as files: ip netns and CNI, docker.
NETNS_DIRECTORIES: Final = (Path("/run/netns"), Path("/run/docker/netns"))
#: Fewer characters of a container's ID than this must be the whole of it.
_SHORTEST_ID: Final = 6
#: Runtimes' IDs are 64 hex digits; something shorter in a cgroup's name is no ID.
_ID_LENGTH: Final = 32
#: How alike a mistyped name must be to be proposed (difflib ratio).
_ALIKE: Final = 0.5


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """What a TARGET names; ``record`` is its enrolment, None when it has none."""

    name: str
    netns_path: Path
    record: PodRecord | None


def resolve_target(
    text: str, records: Iterable[PodRecord], places: Mapping[str, Path] | None = None
) -> ResolvedTarget:
    """The pod a TARGET names.

    ``records`` are the enrolments; ``places`` further names known here, with their namespaces,
    which need not be enrolled. NotFound for what is not here, UsageError for what is ambiguous or
    cannot be read, NotPermitted without the right to look.
    """
    known = list(records)
    kind, colon, value = text.partition(":")
    if not colon:
        return _named(text, known, places or {})
    if kind not in _EXAMPLE:
        kinds = " ".join(f"{k}:" for k in _EXAMPLE)
        raise UsageError(f"target {text!r}: unknown kind {kind}; one of: NAME NS/NAME {kinds}")
    if not value:
        raise UsageError(f"target {text!r}: nothing behind {kind}:; e.g. {kind}:{_EXAMPLE[kind]}")
    if kind == "uid":
        return _by_uid(value, known)
    find = _KINDS[kind]
    try:
        path = find(value)
        record = _enrolment_of(path, known)
    except NotFound:
        # what it was enrolled by has gone; the enrolment is still called that
        left = next((r for r in known if text in (r.name, f"netns:{r.netns}")), None)
        if left is None:
            raise
        return ResolvedTarget(left.name, Path(left.netns), left)
    return ResolvedTarget(record.name if record else text, path, record)


def refuse_host(ns: NetNs, text: str) -> None:
    """Raises HostNamespace when the namespace is the host's; ``text`` is how it was named."""
    if ns.is_host():
        raise HostNamespace(
            f"cannot enroll {text}: its network namespace is the host's (inode {ns.inode}); "
            "host-network pods are never captured"
        )


def _named(text: str, records: Sequence[PodRecord], places: Mapping[str, Path]) -> ResolvedTarget:
    found = {name: ResolvedTarget(name, Path(path), None) for name, path in places.items()}
    found |= {r.name: ResolvedTarget(r.name, Path(r.netns), r) for r in records}
    for matches in (_is_name, _is_last_part, _is_prefix):
        names = sorted(name for name in found if matches(text, name))
        if len(names) == 1:
            return found[names[0]]
        if names:
            raise UsageError(f"pod {text} is ambiguous; one of: {' '.join(names)}")
    raise NotFound(_unknown(text, list(found)))


def _is_name(text: str, name: str) -> bool:
    return name == text


def _is_last_part(text: str, name: str) -> bool:
    return "/" not in text and name.partition("/")[2] == text


def _is_prefix(text: str, name: str) -> bool:
    namespace, slash, pod = name.partition("/")
    if not slash:
        return name.startswith(text) and ":" not in name
    if "/" in text:
        return name.startswith(text) and text.startswith(f"{namespace}/")
    return pod.startswith(text)


def _unknown(text: str, names: Sequence[str]) -> str:
    message = f"unknown pod {text}: not on this node"
    # a name without namespace is compared with names without
    forms = {n if "/" in text else n.rpartition("/")[2]: n for n in names}
    near = difflib.get_close_matches(text, forms, n=1, cutoff=_ALIKE)
    if near:
        return f"{message}; nearest: {forms[near[0]]}"
    known = "those known: nodenet capture show" if names else "none is enrolled here"
    return f"{message}; {known}; any other by pid:N, netns:PATH, cgroup:PATH, unit:U, container:ID"


def _by_uid(uid: str, records: Sequence[PodRecord]) -> ResolvedTarget:
    for record in records:
        if record.uid == uid:
            return ResolvedTarget(record.name, Path(record.netns), record)
    raise NotFound(f"no pod with uid {uid} on this node; see: nodenet capture show")


def _enrolment_of(path: Path, records: Sequence[PodRecord]) -> PodRecord | None:
    with NetNs.open(path) as ns:
        # the inode may be that of a namespace long gone; the cookie settles it
        alike = [r for r in records if r.netns_inode == ns.inode]
        return next((r for r in alike if r.netns_cookie == ns.cookie()), None)


def _of_pid(value: str) -> Path:
    if not (value.isascii() and value.isdigit() and int(value)):
        raise UsageError(f"target pid:{value}: not a process id; e.g. pid:4711")
    if int(value) == 1:
        return Path(host_path())
    inode = _netns_inode(int(value))
    if inode is None:
        raise NotFound(f"process {value}: not there; see: ps -e")
    return _lasting_path(int(value), inode)


def _of_path(value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise UsageError(f"target netns:{value}: not an absolute path; e.g. netns:/run/netns/web")
    if not path.exists():
        raise NetNsGone(value)
    return path


def _of_cgroup(value: str) -> Path:
    mount = cgroup2_mount()
    path = Path(value)
    if not path.is_relative_to("/sys"):
        path = mount / value.lstrip("/")  # as /proc/PID/cgroup shows it
    return _of_processes(f"cgroup {value}", Cgroup.open(path, mount).pids(below=True))


def _of_unit(value: str) -> Path:
    unit = value if "." in value else f"{value}.service"
    mount = cgroup2_mount()
    usual = mount / "system.slice" / unit
    found = usual if usual.is_dir() else _directory_named(mount, unit)
    if found is None:
        raise NotFound(f"unit {unit}: no cgroup of that name below {mount}; is it running?")
    return _of_processes(f"unit {unit}", Cgroup.open(found, mount).pids(below=True))


def _of_container(value: str) -> Path:
    wanted = value.rpartition("://")[2]  # kubectl shows containerd://ID
    pids: dict[str, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            cgroups = Path(entry.path, "cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        for identity in container_ids(cgroups):
            whole = identity == wanted
            if whole or (len(wanted) >= _SHORTEST_ID and identity.startswith(wanted)):
                pids.setdefault(identity, []).append(int(entry.name))
    if not pids:
        raise NotFound(f"container {wanted}: no process of it on this node; is it running?")
    if len(pids) > 1:
        raise UsageError(f"container {wanted} is ambiguous; one of: {' '.join(sorted(pids))}")
    (found,) = pids.values()
    return _of_processes(f"container {wanted}", sorted(found))


def container_ids(cgroups: str) -> set[str]:
    """The IDs of containers in the text of a /proc/PID/cgroup.

    Runtimes name a container's cgroup ``ID``, ``docker-ID.scope``, ``cri-containerd-ID.scope``;
    ``crio-conmon-ID.scope`` holds the runtime's own process, which is not in the container.
    """
    found: set[str] = set()
    for line in cgroups.splitlines():
        for part in line.rpartition(":")[2].split("/"):
            if "conmon" not in part:
                found.update(t for t in re.split(r"[^0-9a-f]", part) if len(t) >= _ID_LENGTH)
    return found


def _of_processes(what: str, pids: Sequence[int]) -> Path:
    """The one namespace that all these processes are in."""
    first: dict[int, int] = {}
    for pid in pids:
        inode = _netns_inode(pid)
        if inode is not None:
            first.setdefault(inode, pid)
    if not first:
        raise NotFound(f"{what}: no processes in it; start something there, or name netns:PATH")
    if len(first) > 1:
        shown = ", ".join(f"pid {pid} in {inode}" for inode, pid in sorted(first.items()))
        raise UsageError(
            f"{what}: its processes are in {len(first)} network namespaces ({shown}); name a pid:N"
        )
    ((inode, pid),) = first.items()
    return _lasting_path(pid, inode)


def _netns_inode(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError as error:
        raise NotPermitted(
            f"network namespace of process {pid}: not permitted to look", hint="run with sudo"
        ) from error


def _lasting_path(pid: int, inode: int) -> Path:
    """A file that names the namespace and outlives the process, else the process's own."""
    for directory in NETNS_DIRECTORIES:
        try:
            entries = sorted(directory.iterdir())
        except OSError:
            continue
        for path in entries:
            try:
                if path.stat().st_ino == inode and os.path.ismount(path):
                    return path
            except OSError:
                continue
    return Path(f"/proc/{pid}/ns/net")


def _directory_named(root: Path, name: str) -> Path | None:
    for directory, below, _files in os.walk(root):
        if name in below:
            return Path(directory, name)
    return None


_KINDS: Final[dict[str, Callable[[str], Path]]] = {
    "pid": _of_pid,
    "netns": _of_path,
    "cgroup": _of_cgroup,
    "unit": _of_unit,
    "container": _of_container,
}
_EXAMPLE: Final = {
    "uid": "6f1c2a90-…",
    "pid": "4711",
    "netns": "/run/netns/web",
    "cgroup": "/system.slice/nginx.service",
    "unit": "nginx.service",
    "container": "3f2a9c…",
}
