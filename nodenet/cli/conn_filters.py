"""The filter options of `conn`: repeat is OR, different ones combine by AND, ``!`` negates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from nodenet.cli import complete
from nodenet.cli.params import SECONDS

if TYPE_CHECKING:
    from nodenet.conns.filters import Filter
    from nodenet.paths import Instance

_F = TypeVar("_F", bound=Callable[..., Any])


class FilterOptions(TypedDict):
    """What the options leave in a verb's keyword arguments."""

    pod: tuple[str, ...]
    peer: tuple[str, ...]
    port: tuple[str, ...]
    state: tuple[str, ...]
    dir: tuple[str, ...]
    via: tuple[str, ...]
    reason: tuple[str, ...]
    process: tuple[str, ...]
    since: float | None
    ipv4: bool
    ipv6: bool


def _states(_instance: Instance) -> Iterable[str]:
    from nodenet.conns.tcp import STATE_CHOICES

    return STATE_CHOICES


def _reasons(_instance: Instance) -> Iterable[str]:
    from nodenet.conns.filters import REASONS

    return REASONS


_OPTIONS = (
    click.option("--pod", multiple=True, metavar="TARGET", shell_complete=complete.pods,
                 help="Connections of this pod: NAME, NS/NAME, uid:U, pid:N, netns:PATH."),
    click.option("--peer", multiple=True, metavar="CIDR|NAME",
                 help="With a peer in this network, or with this pod."),
    click.option("--port", multiple=True, metavar="N", help="With this port on either side."),
    click.option("--state", multiple=True, metavar="STATE",
                 shell_complete=complete.completer(_states),
                 help="In this TCP state: established, close-wait, ..."),
    click.option("--dir", multiple=True, metavar="in|out", help="Opened by the pod, or to it."),
    click.option("--via", multiple=True, metavar="ebpf|iptables|none",
                 help="Captured by this backend, or not at all."),
    click.option("--reason", multiple=True, metavar="R",
                 shell_complete=complete.completer(_reasons),
                 help="Decided for this reason: captured, excluded-port, pre-enrolment, ..."),
    click.option("--process", multiple=True, metavar="NAME|PID", help="Of this process."),
    click.option("--since", type=SECONDS, metavar="10m",
                 help="Open ones that began, closed ones that ended within this time."),
    click.option("-4", "ipv4", is_flag=True, help="Only IPv4."),
    click.option("-6", "ipv6", is_flag=True, help="Only IPv6."),
)  # fmt: skip


def filter_options(function: _F) -> _F:
    """Decorator that adds them all; the verb takes ``**filters`` and calls `filter_of`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def filter_of(options: FilterOptions) -> Filter:
    """The filter a verb was asked for; its values are checked when it is applied."""
    from nodenet.conns.filters import Filter

    return Filter(
        pod=options["pod"],
        peer=options["peer"],
        port=options["port"],
        state=options["state"],
        dir=options["dir"],
        via=options["via"],
        reason=options["reason"],
        process=options["process"],
        since_seconds=options["since"],
        families=tuple(f for f, on in ((4, options["ipv4"]), (6, options["ipv6"])) if on),
    )
