"""cgroup v2 directories: where the hierarchy is, a cgroup's id and depth, who is in it.

The capture programs attach at the root of the hierarchy and know the proxy by (level, id) of its
cgroup, so both must be those of the kernel's hierarchy, not of a cgroup namespace's view of it.
On a host with both versions (hybrid) only the v2 hierarchy counts, wherever it is mounted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodenet.errors import NodenetError, NotFound, NotPermitted, NotSupported, UsageError
from nodenet.kernel import libc
from nodenet.kernel.errors import KernelError

MOUNTS: Final = Path("/proc/mounts")
#: systemd with version 2 alone, and with both.
_USUAL_MOUNTS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
#: Ids of cgroups whose path is remembered by `CgroupPaths`.
REMEMBERED: Final = 8192


class Cgroup2Missing(NotSupported):
    """There is no usable cgroup v2 mount (exit 3)."""

    def __init__(self, message: str, hint: str) -> None:
        NodenetError.__init__(self, message, hint=hint)
        self.feature = "cgroup2"
        self.needs = hint


class NotACgroup(UsageError):
    """The path is not a directory of the cgroup v2 hierarchy."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class CgroupGone(NotFound):
    """The cgroup is not there (any more)."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"cgroup {path}: not there", hint="list them with: systemd-cgls, or ls")
        self.path = path


class CgroupBusy(KernelError):
    """A cgroup that still holds processes cannot be removed."""

    def __init__(self, path: Path, pids: list[int]) -> None:
        shown = " ".join(map(str, pids[:5])) + (" …" if len(pids) > 5 else "")
        super().__init__(f"cgroup {path}: still holds processes {shown or '(ending)'}")
        self.path = path
        self.pids = pids


def cgroup2_mount(mounts: Path = MOUNTS) -> Path:
    """Where the root of the v2 hierarchy is mounted. Cgroup2Missing when it is not.

    The true root has no ``cgroup.type``; a mount made inside a cgroup namespace shows some other
    cgroup as its root and is of no use: ids would be right, levels wrong.

    Where distributions mount it is looked first: a node with a thousand pods has thousands of
    mounts, and the kernel takes a millisecond to list them.
    """
    if mounts is MOUNTS:
        for usual in _USUAL_MOUNTS:
            if is_cgroup2(usual) and not (usual / "cgroup.type").exists():
                return usual
    inner: Path | None = None
    for line in mounts.read_text().splitlines():
        _source, target, fstype, *_rest = line.split(" ")
        if fstype != "cgroup2":
            continue
        path = Path(_unescape(target))
        if not (path / "cgroup.type").exists():
            return path
        inner = inner or path
    if inner is not None:
        raise Cgroup2Missing(
            f"{inner}: the root of a cgroup namespace, not of the hierarchy",
            "run in the host's cgroup namespace (docker: --cgroupns=host)",
        )
    raise Cgroup2Missing(f"no cgroup2 mount in {mounts}", "mount -t cgroup2 none /sys/fs/cgroup")


def is_cgroup2(path: Path) -> bool:
    """Whether the path is a directory of the v2 hierarchy."""
    try:
        return path.is_dir() and libc.fs_magic(os.fspath(path)) == libc.CGROUP2_MAGIC
    except OSError:
        return False


def require_cgroup2(path: Path) -> None:
    """Raises CgroupGone or NotACgroup, saying what the path is instead."""
    if is_cgroup2(path):
        return
    if not path.exists():
        raise CgroupGone(path)
    if libc.fs_magic(os.fspath(path)) == libc.CGROUP1_MAGIC:
        raise NotACgroup(
            path,
            f"a cgroup v1 directory; nodenet needs the v2 hierarchy mounted at {cgroup2_mount()}",
        )
    raise NotACgroup(path, f"not a cgroup; cgroup v2 is mounted at {cgroup2_mount()}")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One directory of the v2 hierarchy; ``mount`` is the hierarchy's root."""

    path: Path
    mount: Path

    @classmethod
    def open(cls, path: Path, mount: Path | None = None) -> Cgroup:
        """An existing one, by absolute path or relative to the mount. CgroupGone, NotACgroup."""
        root = mount or cgroup2_mount()
        absolute = root / path
        require_cgroup2(absolute)
        return cls(absolute, root)

    @classmethod
    def create(cls, path: Path, mount: Path | None = None) -> Cgroup:
        """Makes it, and what is missing above it; one that is there already is taken."""
        root = mount or cgroup2_mount()
        absolute = root / path
        # Without this a mistyped path would become a directory of some other file system.
        existing = next(p for p in (absolute, *absolute.parents) if p.exists())
        try:
            require_cgroup2(existing)
        except NotACgroup as error:
            if existing == absolute or libc.fs_magic(os.fspath(existing)) == libc.CGROUP1_MAGIC:
                raise  # which names it, and what it is instead
            raise NotACgroup(absolute, f"not below the cgroup v2 mount, {root}") from error
        try:
            absolute.mkdir(parents=True, exist_ok=True)
        except PermissionError as error:
            raise NotPermitted(f"cgroup {absolute}: cannot be made", hint="run as root") from error
        return cls(absolute, root)

    @property
    def id(self) -> int:
        """The 64-bit id BPF programs see: the inode number."""
        try:
            return self.path.stat().st_ino
        except FileNotFoundError as error:
            raise CgroupGone(self.path) from error

    @property
    def level(self) -> int:
        """Depth below the root of the hierarchy, which is 0."""
        return len(self.path.relative_to(self.mount).parts)

    @property
    def name(self) -> str:
        """``/kubepods/pod1``: the path as /proc/PID/cgroup shows it."""
        return "/" + "/".join(self.path.relative_to(self.mount).parts)

    def add_pid(self, pid: int) -> None:
        """Moves a process, all its threads, into it. Sockets it has stay where they were made."""
        try:
            (self.path / "cgroup.procs").write_text(f"{pid}\n")
        except FileNotFoundError as error:
            raise CgroupGone(self.path) from error
        except PermissionError as error:
            raise NotPermitted(
                f"cgroup {self.path}: not permitted to move process {pid} there",
                hint="run with sudo",
            ) from error
        except ProcessLookupError as error:
            raise NotFound(f"process {pid}: not there") from error
        except OSError as error:
            raise KernelError(f"cgroup {self.path}: {pid}: {error.strerror}") from error

    def pids(self, *, below: bool = False) -> list[int]:
        """The processes in it; with ``below`` those of its descendants too. CgroupGone."""
        found: list[int] = []
        for path in _tree(self.path) if below else (self.path,):
            try:
                found.extend(map(int, (path / "cgroup.procs").read_text().split()))
            except OSError as error:
                # EOPNOTSUPP: a threaded cgroup lists its processes at the domain above
                if error.errno == errno.EOPNOTSUPP:
                    continue
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
                if path == self.path:
                    raise CgroupGone(path) from error
        return found

    def remove(self) -> None:
        """Removes it with everything below; nothing happens when it is gone. CgroupBusy."""
        for path in reversed(list(_tree(self.path))):
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno == errno.EBUSY:
                    raise CgroupBusy(path, Cgroup(path, self.mount).pids(below=True)) from error
                raise


def cgroup_of(pid: int, mount: Path | None = None) -> Cgroup:
    """The v2 cgroup a process is in. NotFound when the process has ended."""
    root = mount or cgroup2_mount()
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise NotFound(f"process {pid}: not there") from error
    for line in lines:
        if line.startswith("0::"):
            name = line[3:].removesuffix(" (deleted)")
            return Cgroup(root / name.lstrip("/"), root)
    raise Cgroup2Missing(
        f"process {pid} has no cgroup v2 line in /proc/{pid}/cgroup", "boot with cgroup v2 enabled"
    )


class CgroupPaths:
    """Paths of cgroups by id. Ids are never reused, so what was found once stays right."""

    def __init__(self, mount: Path | None = None) -> None:
        self.mount = mount or cgroup2_mount()
        self._known: dict[int, str | None] = {}

    def name(self, cgroup_id: int) -> str | None:
        """``/kubepods/pod1`` for an id, as /proc/PID/cgroup shows it; None when it has gone."""
        if cgroup_id in self._known:
            return self._known[cgroup_id]
        found = self._look_up(cgroup_id)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[cgroup_id] = found
        return found

    def _look_up(self, cgroup_id: int) -> str | None:
        root = os.open(self.mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = libc.open_by_kernfs_id(root, cgroup_id)
        except PermissionError:
            return self._walk(cgroup_id)
        except OSError:  # ESTALE: gone, or never was
            return None
        finally:
            os.close(root)
        try:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        finally:
            os.close(fd)
        if path.name.endswith(" (deleted)"):
            return None
        return Cgroup(path, self.mount).name

    def _walk(self, cgroup_id: int) -> str | None:
        """Without CAP_DAC_READ_SEARCH: the directory with that inode, found by looking."""
        for path in _tree(self.mount):
            try:
                if path.stat().st_ino == cgroup_id:
                    return Cgroup(path, self.mount).name
            except FileNotFoundError:
                continue
        return None


def _tree(path: Path) -> Iterator[Path]:
    """The directory and all below it, parents first."""
    for directory, _below, _files in os.walk(path):
        yield Path(directory)


def _unescape(text: str) -> str:
    """A path of /proc/mounts: space, tab, newline and backslash are octal there."""
    for code, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, char)
    return text
