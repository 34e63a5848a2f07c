"""Dynamic completion: what could stand here now, asked from pins, records and the kernel.

Each function is a click ``shell_complete`` callback. None ever raises or prints: a completion
without rights or without an instance is simply empty.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodenet.cli.globals import of
from nodenet.paths import Instance

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
NETNS_DIRECTORY = Path("/run/netns")
#: More than this many values help nobody.
MOST = 500


def completer(values: Callable[[Instance], Iterable[str]]) -> Completer:
    """A callback from a function that lists all values of an instance.

    For other modules too: ``shell_complete=completer(lambda instance: ...)``.
    """

    def complete(
        ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found: list[str] = []
        # whatever goes wrong, the user is only typing
        with contextlib.suppress(Exception):
            for value in values(of(ctx).instance):
                if value.startswith(incomplete):
                    found.append(value)
                if len(found) == MOST:
                    break
        return [CompletionItem(value) for value in found]

    return complete


def pod_names(instance: Instance) -> list[str]:
    """Enrolled pods: ``NS/NAME``, then the bare names that are unique."""
    from nodenet.capture.records import read_records

    full = [record.name for record in read_records(instance)]
    bare = [name.rpartition("/")[2] for name in full if "/" in name]
    return full + sorted(name for name in set(bare) if bare.count(name) == 1)


def map_names(_instance: Instance) -> list[str]:
    """Every map nodenet has, loaded or not."""
    from nodenet import abi

    return sorted(abi.MAPS)


def prog_names(_instance: Instance) -> list[str]:
    """Every program nodenet has, loaded or not."""
    from nodenet import abi

    return sorted(abi.PROGRAMS)


def netns_names(_instance: Instance) -> list[str]:
    """Named network namespaces as paths."""
    return sorted(str(NETNS_DIRECTORY / name) for name in os.listdir(NETNS_DIRECTORY))


def unit_names(_instance: Instance) -> list[str]:
    """Running systemd services, by their cgroups."""
    from nodenet.kernel.cgroups import cgroup2_mount

    return sorted(p.name for p in (cgroup2_mount() / "system.slice").glob("*.service"))


def target_names(instance: Instance) -> list[str]:
    """All of TARGET: pods, ``netns:PATH``, ``unit:NAME``; see the conventions in docs/cli.md."""
    found: list[str] = []
    for prefix, values in (("", pod_names), ("netns:", netns_names), ("unit:", unit_names)):
        with contextlib.suppress(Exception):
            found += [prefix + value for value in values(instance)]
    return found + ["pid:", "cgroup:", "container:", "uid:"]


pods = completer(pod_names)
maps = completer(map_names)
progs = completer(prog_names)
targets = completer(target_names)
