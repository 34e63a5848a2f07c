"""What stops a start, told with the flag that it is about.

Sockets and TLS know addresses and files; by which flag they were given only the configuration
knows. While a daemon runs its files are changed by others, and nobody thinks of flags.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from nodenet.errors import NodenetError
from nodenet.httpd.sockets import AddressNotHere
from nodenet.konnectivity.tls_files import TlsUnusable


class Configuration(Protocol):
    """What both daemons' configurations tell of their flags."""

    def flags_of_files(self) -> dict[str, Path | None]:
        """The files of TLS by the flags that name them."""

    def flags_of_addresses(self) -> dict[tuple[str, int | None], str]:
        """The flags of the addresses that are listened on, by address and port."""


@contextlib.contextmanager
def with_flags(config: Configuration) -> Iterator[None]:
    """Names the flag in an error that leaves the block, and what to do about it."""
    try:
        yield
    except (TlsUnusable, AddressNotHere) as error:
        named = _named(error, config)
        if named is None:
            raise
        raise named from error


def _named(error: TlsUnusable | AddressNotHere, config: Configuration) -> NodenetError | None:
    if isinstance(error, AddressNotHere):
        # "" is every address, and never the one that is missing
        at = error.address, error.port
        flag = {_plain(*key): f for key, f in config.flags_of_addresses().items()}.get(at)
        if flag is None:
            return None
        hint = f"give another {flag}, an address of this host"
        return AddressNotHere(error.address, error.port, hint)
    flags = [flag for flag, path in config.flags_of_files().items() if path == error.path]
    if not flags:
        return None
    # one file may be given for both
    wanted = "-key" if " key" in error.reason else "-cert"
    flag = next((each for each in flags if each.endswith(wanted)), flags[0])
    return TlsUnusable(error.path, error.reason, flag=flag, hint=_what_to_do(error, flag))


def _plain(host: str, port: int | None) -> tuple[str, int | None]:
    """With the address as sockets write it."""
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return host, port


def _what_to_do(error: TlsUnusable, flag: str) -> str:
    if "not the key of" in error.reason:
        return f"{flag} and {flag.removesuffix('-key')}-cert go together"
    if "encrypted" in error.reason:
        return f"give it without: openssl pkey -in {error.path} -out FILE"
    kind = "pkey -noout" if flag.endswith("-key") else "x509 -noout -text"
    return f"look at it: openssl {kind} -in {error.path}"
