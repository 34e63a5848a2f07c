"""Checks of flags that both daemons make before a socket is opened."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from nodenet.errors import UsageError
from nodenet.httpd.sockets import ANYWHERE, LOCALHOST
from nodenet.konnectivity.go_flags import Parsed
from nodenet.konnectivity.tls_files import why_no_file


@dataclass(frozen=True, slots=True)
class Listener:
    """The flags of one listening port."""

    port_flag: str
    address_flag: str


def bind_address(flags: Parsed, name: str) -> str:
    """A flag that is an address, ``localhost``, or empty for all addresses. UsageError."""
    text = flags.text(name)
    try:
        if text not in ("", LOCALHOST, ANYWHERE):
            ipaddress.ip_address(text)
    except ValueError:
        hint = f"e.g. --{name}=127.0.0.1"
        raise UsageError(f"--{name}={text}: not an address", hint=hint) from None
    return text


def existing_file(flags: Parsed, name: str) -> Path | None:
    """A flag that names a file, None when it is empty. UsageError when it is none."""
    text = flags.text(name)
    if not text:
        return None
    path = Path(text)
    reason = why_no_file(path)
    if reason is not None:
        raise UsageError(f"--{name}={text}: {reason}")
    return path


def not_negative(flags: Parsed, names: Sequence[str]) -> None:
    """UsageError for a DURATION flag below 0."""
    for name in names:
        if flags.seconds(name) < 0:
            raise UsageError(f"--{name} is negative")


def ports_apart(flags: Parsed, listeners: Sequence[Listener]) -> None:
    """UsageError for two listeners that would be in each other's way.

    Without it the process would name itself as the one that has the port.
    """
    for one, two in combinations(listeners, 2):
        port = flags.number(one.port_flag)
        if port != flags.number(two.port_flag):
            continue
        if _meet(flags.text(one.address_flag), flags.text(two.address_flag)):
            raise UsageError(
                f"--{one.port_flag} and --{two.port_flag} are both {port}",
                hint="give each its own port",
            )


def _meet(one: str, two: str) -> bool:
    """Whether two bind addresses have one in common."""
    if "" in (one, two) or ANYWHERE in (one, two):
        return True
    return any(
        a.version == b.version and (a == b or a.is_unspecified or b.is_unspecified)
        for a in _addresses(one)
        for b in _addresses(two)
    )


def _addresses(text: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    both = ("127.0.0.1", "::1") if text == LOCALHOST else (text,)
    return [ipaddress.ip_address(each) for each in both]
