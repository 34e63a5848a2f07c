"""Files of the CA's directory: replaced in one step, readable by their owner only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replaces a file in one step; whoever reads sees the old one or the new one, whole.

    The data is on the disk before the name is. What a killed writer leaves is ``.NAME.PID.tmp``,
    with the same mode; the next writer of the same pid replaces it, `sweep` removes the rest.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)  # whatever the umask is
            file.write(data)
            file.flush()
            os.fsync(fd)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Brings renames and removals in a directory to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep(directory: Path) -> None:
    """Removes what killed writers left; the caller is the only writer."""
    for path in directory.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
