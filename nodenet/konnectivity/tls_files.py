"""Certificates, keys and CAs from files, and errors that say which file is wrong and why.

OpenSSL reads certificate and key in one step and says ``PEM lib`` of either. It also asks the
terminal for the passphrase of an encrypted key, and a daemon would wait there for ever.
"""

from __future__ import annotations

import ssl
import stat
from pathlib import Path
from typing import Final, Protocol

from nodenet.konnectivity.errors import KonnectivityError
from nodenet.tls.errors import CredentialsUnusable

_BEGIN: Final = b"-----BEGIN "


class Loading(Protocol):
    """What takes files: an ssl.SSLContext or a `nodenet.tls.context.Context`."""

    def load_cert_chain(self, certfile: Path, keyfile: Path) -> None: ...

    def load_verify_locations(self, cafile: Path) -> None: ...


class TlsUnusable(KonnectivityError):
    """A certificate, key or CA file cannot be used now; ``path`` is the one.

    ``flag`` is the option that named it, where that is known.
    """

    def __init__(
        self, path: Path, reason: str, *, flag: str | None = None, hint: str | None = None
    ) -> None:
        what = f"cannot use {path}" if flag is None else f"{flag}={path}"
        super().__init__(f"{what}: {reason}", hint=hint)
        self.path = path
        self.reason = reason
        self.flag = flag


def why_no_file(path: Path) -> str | None:
    """Why a path names no file that can be read; None when it does. Blocking."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "no such file"
    except (OSError, ValueError) as error:
        # a path too long, a zero in it, a directory that may not be entered
        return _words(error)
    if stat.S_ISDIR(mode):
        return "is a directory"
    return None if stat.S_ISREG(mode) else "not a file"


def load_pair(context: Loading, cert: Path, key: Path) -> None:
    """Shows a certificate to peers. Blocking. TlsUnusable."""
    _has(cert, b"CERTIFICATE", "it has no certificate in PEM")
    if b"ENCRYPTED" in _has(key, b"PRIVATE KEY", "it has no private key in PEM"):
        raise TlsUnusable(key, "it is encrypted, and there is nobody to ask for the passphrase")
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, CredentialsUnusable) as error:
        if _words(error) == "key values mismatch":
            raise TlsUnusable(key, f"it is not the key of {cert}") from error
        raise TlsUnusable(cert, f"{_words(error)} (with {key})") from error
    except OSError as error:
        raise TlsUnusable(cert, _words(error)) from error


def load_authorities(context: Loading, path: Path) -> None:
    """Believes certificates of these CAs. Blocking. TlsUnusable."""
    _has(path, b"CERTIFICATE", "it has no certificate in PEM")
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, CredentialsUnusable) as error:
        raise TlsUnusable(path, _words(error)) from error


def _has(path: Path, what: bytes, otherwise: str) -> bytes:
    """The file's bytes. TlsUnusable without such a block."""
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise TlsUnusable(path, _words(error)) from error
    if not any(line.startswith(_BEGIN) and what in line for line in data.splitlines()):
        raise TlsUnusable(path, otherwise)
    return data


def _words(error: OSError | ValueError | CredentialsUnusable) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).lower().replace("_", " ")
