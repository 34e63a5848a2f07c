"""``nodenet version``: what is installed and what runs, in one line."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator

import msgspec

from nodenet import __version__
from nodenet.cli.commands import object_command
from nodenet.cli.globals import Globals, pass_globals
from nodenet.cli.output import emit_report
from nodenet.cli.style import Style
from nodenet.errors import NodenetError, NotPermitted
from nodenet.paths import Instance

#: Where distributions put bcc: it is no dependency pip could install.
SYSTEM_PACKAGES = "/usr/lib/python3/dist-packages"


#: Seconds a daemon has for its word; the rest is there without it.
ANSWER_SECONDS = 1.0


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """A running daemon of the instance that answers."""

    name: str
    node: str | None
    version: str
    pid: int


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``nodenet version -j``."""

    ok: bool
    nodenet: str
    abi_schema: int
    abi_schema_loaded: int | None
    """The schema of the maps in the kernel, None when there are none or they may not be read."""
    python: str
    bcc: str | None
    kernel: str
    daemons: tuple[Daemon, ...] = ()
    """Those that answer this user: the proxies, which tell their version."""


class SchemaDiffers(NodenetError):
    """The kernel holds objects of another nodenet."""


def bcc_version(directories: Iterable[str]) -> str | None:
    """The version in the name of bcc's metadata, without importing it (30 to 350 ms)."""
    for directory in directories:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            stem, suffix = os.path.splitext(name)
            if stem.startswith("bcc-") and suffix in (".egg-info", ".dist-info"):
                return stem.split("-")[1]
    return None


def loaded_schema(instance: Instance) -> int | None:
    """The ABI schema in the pinned ``cfg`` map; None when it is not there or not readable."""
    path = instance.maps / "cfg"
    try:
        if not path.exists():
            return None
        from nodenet import abi
        from nodenet.kernel.maps import Map

        with Map.open(path) as cfg:
            raw = cfg.lookup(abi.INDEX_KEY.pack(index=0))
    except (PermissionError, NotPermitted):
        return None
    # the schema is the first word of every version's cfg
    return int.from_bytes(raw[:4], "little") if raw else None


def daemons(instance: Instance) -> Iterator[Daemon]:
    """The proxies of the instance that answer; none is no error."""
    if not instance.run.is_dir():
        return
    from nodenet.agents.ztunnel.views import StatusView
    from nodenet.cli.ztunnel_ask import fetched, local_proxies, own

    for proxy in local_proxies(instance):
        with contextlib.suppress(NodenetError, OSError):
            answer = fetched(proxy, "/v1/status", answer_seconds=ANSWER_SECONDS)
            status = own(answer, proxy, StatusView)
            if status is not None:
                yield Daemon(
                    name="ztunnel", node=status.node, version=status.version, pid=status.pid
                )


def collect(instance: Instance) -> Version:
    """Looks everything up."""
    from nodenet.abi import SCHEMA

    loaded = loaded_schema(instance)
    return Version(
        ok=loaded in (None, SCHEMA),
        nodenet=__version__,
        abi_schema=SCHEMA,
        abi_schema_loaded=loaded,
        python=platform.python_version(),
        bcc=bcc_version([*sys.path, SYSTEM_PACKAGES]),
        kernel=os.uname().release,
        daemons=tuple(daemons(instance)),
    )


def render(version: Version, _style: Style) -> str:
    """One line, and one a daemon."""
    line = (
        f"nodenet {version.nodenet}, abi schema {version.abi_schema}, python {version.python}, "
        f"bcc {version.bcc or 'none'}, kernel {version.kernel}\n"
    )
    for daemon in version.daemons:
        where = f", node {daemon.node}" if daemon.node else ""
        other = "" if daemon.version == version.nodenet else ": another version than this command"
        line += f"{daemon.name} {daemon.version}, pid {daemon.pid}{where}{other}\n"
    return line


@object_command("version")
@pass_globals
def command(g: Globals) -> None:
    """Versions of nodenet, its parts and this kernel.

    A line more for each running proxy. Exit 1 when the maps in the kernel are of another schema
    than this nodenet's.
    """
    found: Version = emit_report(g, collect(g.instance), render)
    if not found.ok:
        raise SchemaDiffers(
            f"maps in the kernel are schema {found.abi_schema_loaded}, this nodenet expects "
            f"{found.abi_schema}: {g.instance.maps}",
            hint="run: nodenet capture unenroll --all, then enrol again",
        )
