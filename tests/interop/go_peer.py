"""Builds tests/interop/peer, the real konnectivity client, agent and server, once for its sources.

The binary is kept in `.cache/interop`. The first build downloads the modules and takes some minutes
on a small machine; after that it is a look at a file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent / "peer"
_CACHE: Final = Path(__file__).parents[2] / ".cache" / "interop"
#: A cold build, with its downloads, on two shared cores.
BUILD_SECONDS: Final = 900


class NoGoPeer(Exception):
    """It cannot be built here; the text says why."""


def find_go() -> str | None:
    """The go command, None when there is none."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


@cache
def go_peer() -> Path:
    """The binary. NoGoPeer when it cannot be built, the same each time it is asked."""
    go = find_go()
    if go is None:
        raise NoGoPeer("no go command; install Go 1.26 or newer")
    digest = hashlib.sha256()
    for source in sorted(_HERE.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    binary = _CACHE / f"peer-{digest.hexdigest()[:16]}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with open(_CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            _build(go, binary)
    return binary


def _build(go: str, binary: Path) -> None:
    fresh = binary.with_suffix(".new")
    command = [go, "build", "-trimpath", "-buildvcs=false", "-o", str(fresh), "."]
    env = os.environ | {"HOME": os.environ.get("HOME", str(_CACHE))}
    try:
        done = subprocess.run(
            command, cwd=_HERE, env=env, timeout=BUILD_SECONDS, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise NoGoPeer(f"go build did not end within {BUILD_SECONDS} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise NoGoPeer(f"go build failed: {lines[-1]}")
    for old in set(_CACHE.glob("peer-*")) - {fresh}:
        old.unlink()
    fresh.rename(binary)
