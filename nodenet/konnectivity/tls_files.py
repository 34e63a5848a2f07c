"""Certificates, keys and CAs from files, and errors that say which file is wrong and why.

OpenSSL reads certificate and key in one step and says ``PEM lib`` of either. It also asks the
terminal for the passphrase of an encrypted key, and a daemon would wait there for ever.
"""

from __future__ import annotations

import ssl
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
    """A certificate, key or CA file cannot be used now; ``path`` is the one."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot use {path}: {reason}")
        self.path = path
        self.reason = reason


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
