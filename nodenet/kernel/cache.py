"""Files that save a start from compiling and from parsing BTF: bytecode, and facts of the kernel.

An entry is JSON behind a digest of itself, written atomically. What cannot be read, is damaged,
belongs to somebody else or was made by another toolchain counts as absent: a cache never fails.
`NODENET_NO_CACHE=1` switches it off, `NODENET_CACHE` moves it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodenet.kernel.btf import KernelFacts, read_facts
from nodenet.kernel.bytecode import Compiled, ToolFile

if TYPE_CHECKING:
    import logging

#: Changes when the files' form or what the loader does with them changes.
FORMAT: Final = 1
_DIGEST_BYTES: Final = 32
_SYSTEM: Final = Path("/var/cache/nodenet")


def default_directory() -> Path | None:
    """Where entries are kept, or None when caching is switched off."""
    if os.environ.get("NODENET_NO_CACHE", "") not in ("", "0"):
        return None
    if chosen := os.environ.get("NODENET_CACHE"):
        return Path(chosen)
    return _SYSTEM if os.geteuid() == 0 else Path.home() / ".cache" / "nodenet"


class Cache:
    """Entries below one directory; None for the directory means: keep nothing."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory

    def read(self, name: str) -> bytes | None:
        """The entry's content, or None."""
        if self.directory is None:
            return None
        path = self.directory / name
        try:
            with open(path, "rb", opener=_open_regular) as file:
                status = os.fstat(file.fileno())
                raw = file.read()
        except OSError:
            return None
        # root loads this into the kernel: only what root or this very user could have written
        trusted = status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
        digest, content = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        if not trusted or hashlib.sha256(content).digest() != digest:
            _logger().warning("ignoring the cache entry %s: damaged or foreign", path)
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Keeps the entry; readers see the old one or the new one. A full disk is no error."""
        if self.directory is None:
            return
        path = self.directory / name
        temporary = path.with_name(f".{name}.{os.getpid()}")
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            temporary.unlink(missing_ok=True)
            with open(temporary, "wb", opener=lambda p, _: os.open(p, flags, 0o644)) as file:
                file.write(hashlib.sha256(content).digest() + content)
            temporary.replace(path)
        except OSError as error:
            _logger().info("cannot keep %s: %s", path, error)

    # bytecode

    def compiled(self, key: str) -> Compiled | None:
        """The bytecode kept under ``key``, when this host's toolchain is still the one it is of."""
        content = self.read(_bytecode_name(key))
        if content is None:
            return None
        try:
            found = Compiled.decode(content)
        except (LookupError, TypeError, ValueError):
            return None
        return found if _same_toolchain(found.toolchain) else None

    def keep_compiled(self, key: str, compiled: Compiled) -> None:
        """Keeps bytecode under ``key``."""
        self.write(_bytecode_name(key), compiled.encode())

    # facts

    def facts(self, offsets: Collection[str], functions: Collection[str]) -> KernelFacts:
        """`btf.read_facts`, from the cache when it was asked the same of this very kernel."""
        asked = json.dumps([sorted(offsets), sorted(functions)])
        name = f"btf-{_digest(kernel_identity(), asked.encode())[:32]}.json"
        if (content := self.read(name)) is not None:
            try:
                kept_offsets, kept_functions = json.loads(content)
                return KernelFacts(dict(kept_offsets), dict(kept_functions))
            except (TypeError, ValueError):
                pass
        facts = read_facts(offsets, functions)
        self.write(name, json.dumps(facts).encode())
        return facts


def bytecode_key(source: str, cflags: Collection[str], abi_schema: int) -> str:
    """What bytecode depends on beside the toolchain, which each entry records itself."""
    parts = [str(FORMAT), str(abi_schema), os.uname().machine, source, *cflags]
    return _digest(*(part.encode() for part in parts))


def kernel_identity() -> bytes:
    """Tells kernel builds apart: the build id and the version. Unlike BTF it takes no time."""
    name = os.uname()
    try:
        notes = Path("/sys/kernel/notes").read_bytes()
    except OSError:
        notes = b""
    return notes + "\0".join((name.release, name.version, name.machine)).encode()


def _logger() -> logging.Logger:
    # a start that finds its entries says nothing, so it need not import logging either (5 ms)
    import logging

    return logging.getLogger(__name__)


def _bytecode_name(key: str) -> str:
    return f"bytecode-{key[:32]}.json"


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


def _open_regular(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("not a regular file")
    return fd


def _same_toolchain(files: Collection[ToolFile]) -> bool:
    """Whether the compiler's libraries are unchanged, or not installed here at all.

    Bytecode does not need its compiler to run: a node without BCC may use what was kept.
    """
    changed = missing = 0
    for file in files:
        try:
            now = os.stat(file.path)
        except FileNotFoundError:
            missing += 1
            continue
        except OSError:
            return False
        changed += (now.st_size, now.st_mtime_ns) != (file.size, file.mtime_ns)
    return not changed and missing in (0, len(files))
