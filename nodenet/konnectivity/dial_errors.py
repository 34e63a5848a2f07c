"""Texts of failed dials, as the Go agent says them: the server maps them to HTTP statuses."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

#: Upstream's words where they differ from what strerror says in lower case.
_WORDS: Final = {
    errno.EHOSTUNREACH: "no route to host",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files in system",
    errno.EADDRNOTAVAIL: "cannot assign requested address",
}


def unknown_network(network: str) -> str:
    """A dial of something that is not TCP."""
    return f"dial {network}: unknown network {network}"


def bad_address(network: str, address: str) -> str:
    """An address that is not host and port."""
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        return f"dial {network}: address {address}: missing port in address"
    if ":" in host and not host.startswith("["):
        return f"dial {network}: address {address}: too many colons in address"
    if not host:
        return f"dial {network}: address {address}: missing host in address"
    return f"dial {network}: address {port}: invalid port"


def too_many_dials(network: str, address: str, limit: int) -> str:
    """More dials at a time than the agent does; reads as a lack of descriptors (status 503)."""
    return f"dial {network} {address}: too many open files: {limit} dials are under way"


def timed_out(network: str, address: str) -> str:
    """No answer within the time a dial gets."""
    return f"dial {network} {address}: i/o timeout"


def refused(network: str, address: str, error: OSError) -> str:
    """What connect(2), or making a socket for it, said."""
    number = error.errno or 0
    words = _WORDS.get(number) or (os.strerror(number) if number else str(error)).lower()
    if number == errno.ETIMEDOUT:
        return f"dial {network} {address}: connect: connection timed out"
    step = "socket" if number in (errno.EMFILE, errno.ENFILE, errno.EAFNOSUPPORT) else "connect"
    return f"dial {network} {address}: {step}: {words}"


def unresolved(network: str, host: str, error: OSError) -> str:
    """A name without an address. The resolver's address is not known here, Go names it."""
    if isinstance(error, socket.gaierror) and error.errno in (
        socket.EAI_NONAME,
        socket.EAI_NODATA,
        socket.EAI_FAIL,
    ):
        return f"dial {network}: lookup {host}: no such host"
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return f"dial {network}: lookup {host}: server misbehaving"
    return f"dial {network}: lookup {host}: {(error.strerror or str(error)).lower()}"
