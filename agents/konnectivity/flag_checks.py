"""Checks of flags that both daemons make before a socket is opened."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from nodenet.errors import UsageError
from nodenet.httpd.sockets import ANYWHERE, LOCALHOST
from nodenet.konnectivity.go_flags import Parsed


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
    """A flag that names a file, None when it is empty. UsageError when there is no such file."""
    text = flags.text(name)
    if not text:
        return None
    path = Path(text)
    try:
        if not path.is_file():
            raise UsageError(f"--{name}={text}: no such file")
    except (OSError, ValueError) as error:
        # a path too long, a zero in it, a directory that may not be entered
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--{name}={text}: {reason.lower()}") from error
    return path
