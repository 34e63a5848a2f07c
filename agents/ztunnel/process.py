"""What makes this process the proxy of an instance and a node: cgroup, descriptors, lock."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from nodenet.agents.ztunnel.config import ZtunnelConfig
from nodenet.errors import NodenetError, NotFound, NotPermitted
from nodenet.kernel.cgroups import Cgroup, CgroupGone, cgroup2_mount
from nodenet.paths import Instance

#: Descriptors asked for: two for each of the most connections one pod may have, and the rest.
WANTED_FILES: Final = 1 << 20

logger = logging.getLogger(__name__)


class AgentCgroupMissing(NotFound):
    """The cgroup by which the kernel programs know the proxy is not there."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"cgroup of the proxy: {path}: not there",
            hint="enroll a pod first (nodenet capture enroll makes it), or name one: --cgroup PATH",
        )
        self.path = path


class AlreadyRunning(NodenetError):
    """Another process is the proxy of this instance and node."""

    def __init__(self, pid: str, path: Path) -> None:
        super().__init__(
            f"already running: pid {pid} holds {path}", hint="end that one, or give --id or --node"
        )
        self.pid = pid
        self.path = path


def join_cgroup(config: ZtunnelConfig) -> Path:
    """Moves this process into the proxy's cgroup. AgentCgroupMissing when it is not there.

    Must come before the first socket: the kernel programs tell the proxy's sockets from a pod's
    by the cgroup they were made in, never by the mark.
    """
    mount = cgroup2_mount()
    path = config.cgroup or mount / config.instance.name / "ztunnel"
    try:
        Cgroup.open(path, mount).add_pid(os.getpid())
    except CgroupGone as error:
        raise AgentCgroupMissing(path) from error
    return path


def raise_file_limit() -> int:
    """Raises the number of descriptors as far as allowed; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (WANTED_FILES, hard):
        if soft >= wanted:
            return soft
        with contextlib.suppress(ValueError, OSError):  # no right to, or over fs.nr_open
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
            return wanted
    return soft


def lock_path(instance: Instance, node: str | None) -> Path:
    """The lock of the one proxy of an instance and node."""
    suffix = "" if node is None else f"-{quote(node, safe='')}"
    return instance.run / f"ztunnel{suffix}.lock"


@contextlib.contextmanager
def only_one(instance: Instance, node: str | None) -> Iterator[None]:
    """Holds the lock of the instance and node. AlreadyRunning.

    An flock: it ends with the process, so a killed proxy leaves none, though it leaves the file.
    """
    path = lock_path(instance, node)
    fd = _locked(path)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # still locked: nobody else holds what is removed here
        os.close(fd)


def _locked(path: Path) -> int:
    """A locked descriptor of the file at that path."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            text = f"cannot write {path}: permission denied"
            raise NotPermitted(text, hint="run as root") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise AlreadyRunning(holder or "unknown", path) from None
        if _is_at(fd, path):
            return fd
        os.close(fd)  # its last holder has removed it while we opened it


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def notify_service_manager(env: Mapping[str, str], state: str) -> None:
    """Tells systemd ``READY=1`` or ``STOPPING=1``; nothing where there is none (sd_notify(3))."""
    address = env.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("cannot tell the service manager %s: %s", state, error)
