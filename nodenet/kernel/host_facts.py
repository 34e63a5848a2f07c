"""What a host is: lockdown mode of its kernel, and which managers of pods run on it.

Looked at, never changed: securityfs that is not mounted is read through a detached mount, which
no path shows and which ends with its descriptor.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/mounts")
#: What `lockdown` answers when it cannot be read.
UNKNOWN: Final = "unknown"

# fsopen, fsconfig, fsmount (linux/mount.h); the numbers are the same on every architecture
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_CMD_CREATE: Final = 6
_LOCKDOWN_BYTES: Final = 128

#: A sign of each manager: any of the paths is there.
_ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "kubernetes": ("/var/lib/kubelet/config.yaml", "/var/run/secrets/kubernetes.io",
                   "/etc/kubernetes/kubelet.conf", "/var/lib/rancher/k3s", "/var/lib/k0s"),
    "containerd": ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock",
                   "/run/k0s/containerd.sock"),
    "systemd": ("/run/systemd/system",),
}  # fmt: skip


def rooms(root: Path = Path("/")) -> dict[str, bool]:
    """Which of kubernetes, containerd and systemd manage this host, by their files."""
    return {
        name: any((root / path.lstrip("/")).exists() for path in paths)
        for name, paths in _ROOMS.items()
    }


def lockdown(mounts: Path = MOUNTS) -> str:
    """``none``, ``integrity``, ``confidentiality``, or ``unknown`` when it may not be read.

    A kernel built without lockdown has no such file; that is ``none``.
    """
    for directory in _securityfs(mounts):
        try:
            return _chosen((directory / "lockdown").read_text())
        except FileNotFoundError:
            return "none"
        except OSError:
            return UNKNOWN
    try:
        return _chosen(_read_detached("securityfs", "lockdown"))
    except FileNotFoundError:
        return "none"
    except OSError:
        return UNKNOWN


def _securityfs(mounts: Path) -> list[Path]:
    lines = (line.split(" ") for line in mounts.read_text().splitlines())
    return [Path(words[1]) for words in lines if words[2] == "securityfs"]


def _chosen(text: str) -> str:
    """``integrity`` of ``none [integrity] confidentiality``."""
    _, found, rest = text.partition("[")
    return rest.partition("]")[0] if found else UNKNOWN


def _read_detached(filesystem: str, name: str) -> str:
    """The content of a file on a file system that is mounted nowhere; OSError."""
    context = _syscall(
        _FSOPEN, ctypes.c_char_p(filesystem.encode()), ctypes.c_uint(_FSOPEN_CLOEXEC)
    )
    try:
        _syscall(
            _FSCONFIG, ctypes.c_int(context), ctypes.c_uint(_FSCONFIG_CMD_CREATE),
            None, None, ctypes.c_int(0),
        )  # fmt: skip
        root = _syscall(
            _FSMOUNT, ctypes.c_int(context), ctypes.c_uint(_FSMOUNT_CLOEXEC), ctypes.c_uint(0)
        )
    finally:
        os.close(context)
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
    finally:
        os.close(root)
    try:
        return os.read(file, _LOCKDOWN_BYTES).decode()
    finally:
        os.close(file)


def _syscall(number: int, *arguments: object) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result: int = call(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
