"""What the markers of the privileged tests ask of a machine, found by trying.

A skip must not hide a fault: where the machine is known to be able (``CI=true``, or the marker's
name in ``NODENET_REQUIRE=root,bpf``), a missing requirement fails the test instead. ``go`` must be
asked for by name: it takes a Go toolchain and, once, its module proxy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

Outcome = Literal["run", "skip", "fail"]


def demanded(environ: Mapping[str, str]) -> frozenset[str]:
    """The markers whose tests must run here."""
    names = environ.get("NODENET_REQUIRE", "").split(",")
    asked = frozenset(name.strip() for name in names if name.strip())
    if environ.get("CI", "").lower() in ("true", "1"):
        return asked | (frozenset(REQUIREMENTS) - {"go"})
    return asked


def judge(
    markers: Iterable[str],
    environ: Mapping[str, str],
    missing: Callable[[str], str | None] | None = None,
) -> tuple[Outcome, str]:
    """What to do with a test that has these markers, and why."""
    look = missing or what_is_missing
    must = demanded(environ)
    for name in markers:
        why = look(name) if name in REQUIREMENTS else None
        if why is not None:
            return ("fail" if name in must else "skip"), f"{name}: {why}"
    return "run", ""


@cache
def what_is_missing(name: str) -> str | None:
    """Why tests with this marker cannot run here; None when they can."""
    return REQUIREMENTS[name]()


def _root() -> str | None:
    if os.geteuid() != 0:
        return "not root; run: sudo ./dev test"
    found: list[OSError] = []

    def try_it() -> None:
        from nodenet.kernel import libc

        try:
            libc.unshare(libc.CLONE_NEWNET)
        except OSError as error:
            found.append(error)

    # unshare moves only the calling thread, and the namespace ends with it
    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    return f"no network namespaces: {found[0]}" if found else None


def _bpf() -> str | None:
    if (why := what_is_missing("root")) is not None:
        return why
    from nodenet import abi
    from nodenet.errors import NodenetError
    from nodenet.kernel.cgroups import cgroup2_mount
    from nodenet.kernel.maps import Map
    from nodenet.paths import BPFFS

    if not _is_bpffs(BPFFS):
        return f"no bpffs at {BPFFS}; run: mount -t bpf none {BPFFS}"
    try:
        cgroup2_mount()
        Map.create(abi.MAPS["live"]).close()
    except (NodenetError, OSError) as error:
        return str(error)
    return None


def _go() -> str | None:
    from tests.interop.go_peer import NoGoPeer, go_peer

    try:
        go_peer()
    except NoGoPeer as error:
        return str(error)
    return None


def _is_bpffs(path: Path) -> bool:
    return any(
        line.split()[1:3] == [str(path), "bpf"]
        for line in Path("/proc/mounts").read_text().splitlines()
    )


REQUIREMENTS: Final[Mapping[str, Callable[[], str | None]]] = {
    "root": _root,
    "bpf": _bpf,
    "go": _go,
}
