"""What an agent says it serves: the metadata value ``agentidentifiers``.

A URL query: ``host=node1.example&ipv4=10.0.0.1&ipv6=fd00::1&cidr=10.0.0.0/8&default-route=true``.
Repeatable but for ``default-route``; unknown keys are ignored by a server and refused by an agent.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_plus

from nodenet.konnectivity.errors import KonnectivityError

#: strconv.ParseBool of Go; anything else is false.
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})(.{0,2})", re.DOTALL)
KEYS: Final = ("ipv4", "ipv6", "host", "cidr", "uid", "default-route")
#: Of one agent; a query of the largest header block has fewer.
MAX_IDENTIFIERS: Final = 4096


class BadIdentifiers(KonnectivityError):
    """The text is no URL query; the message is what upstream answers."""


@dataclass(frozen=True, slots=True)
class Identifiers:
    """The values as written, in their order."""

    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    cidr: tuple[str, ...] = ()
    default_route: bool = False
    unknown: tuple[str, ...] = ()
    """Keys that mean nothing here."""

    def destinations(self) -> tuple[str, ...]:
        """What the strategy ``destHost`` compares with, in the form of `normal_host`."""
        found = (normal_host(value) for value in (*self.ipv4, *self.ipv6, *self.host))
        return tuple(dict.fromkeys(found))

    def text(self) -> str:
        """Short, for people and logs: ``host=node1,ipv4=10.0.0.1,default-route``.

        An agent may have escaped anything, line ends too: those are written out.
        """
        parts = [
            f"{key}={value}"
            for key, values in (
                ("host", self.host),
                ("ipv4", self.ipv4),
                ("ipv6", self.ipv6),
                ("cidr", self.cidr),
            )
            for value in values
        ]
        text = ",".join(parts + (["default-route"] if self.default_route else []))
        if text.isprintable():
            return text
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


NO_IDENTIFIERS: Final = Identifiers()


def parse_identifiers(text: str) -> Identifiers:
    """Reads the metadata value. BadIdentifiers."""
    values: dict[str, list[str]] = {key: [] for key in KEYS}
    unknown: list[str] = []
    count = 0
    for part in text.split("&"):
        if not part:
            continue
        if ";" in part:
            raise BadIdentifiers(
                "fail to parse url encoded string: invalid semicolon separator in query"
            )
        if bad := _BAD_ESCAPE.search(part):
            raise BadIdentifiers(
                f'fail to parse url encoded string: invalid URL escape "%{bad[1]}"'
            )
        count += 1
        if count > MAX_IDENTIFIERS:
            raise BadIdentifiers(f"more than {MAX_IDENTIFIERS} agent identifiers")
        key, _, value = (unquote_plus(p) for p in part.partition("="))
        if key in values:
            values[key].append(value)
        else:
            unknown.append(key)
    return Identifiers(
        ipv4=tuple(values["ipv4"]),
        ipv6=tuple(values["ipv6"]),
        host=tuple(values["host"]),
        cidr=tuple(values["cidr"]),
        default_route=values["default-route"][:1] != [] and values["default-route"][0] in _TRUE,
        unknown=tuple(dict.fromkeys(unknown)),
    )


def host_of(address: str) -> str:
    """The host of ``host:port``, ``[ipv6]:port``, or a host without a port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, _, rest = address.partition(":")
    return address if ":" in rest else host


def normal_host(host: str) -> str:
    """One spelling a host: lower case without the final dot; IP addresses as RFC 5952 has them.

    Upstream compares the text. That only finds less: ``FD00:0::1`` and ``fd00::1`` are one node.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().removesuffix(".")
