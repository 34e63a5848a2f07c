"""What goes wrong with TLS; the messages are part of a sentence, the caller names the peer."""

from __future__ import annotations

import re
from typing import Final

from nodenet.errors import NodenetError

#: How OpenSSL says that a peer has sent an alert: ``tlsv1 alert unknown ca``.
_ALERT: Final = re.compile(r"(?:ssl|tls)[\w/]* alert (.+)")


class TlsError(NodenetError):
    """Base of everything `nodenet.tls` raises. ``reason`` is OpenSSL's, in lower case."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"tls: {reason}")
        self.reason = reason


class CredentialsUnusable(TlsError):
    """OpenSSL does not take a certificate, a key or an authority."""


class HandshakeFailed(TlsError):
    """No connection came of it: no version or cipher in common, no TLS at all, an alert."""


class PeerLeft(HandshakeFailed):
    """The peer went, or said nothing, before the handshake was done."""


class PeerUntrusted(HandshakeFailed):
    """The peer's certificate is not valid here; ``number`` is OpenSSL's X509_V_ERR_*.

    ``depth`` is where in its chain: 0 is the peer's own, what is above it a CA's.
    """

    def __init__(self, reason: str, number: int, depth: int = 0) -> None:
        super().__init__(reason)
        self.number = number
        self.depth = depth


class WrongName(HandshakeFailed):
    """The peer's certificate is valid, and not for ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the certificate is not for {name}")
        self.name = name


class RecordsBroken(TlsError):
    """What came after the handshake cannot be decrypted, or the peer ended with an alert."""


def alert_in(text: str) -> str | None:
    """What the peer has said by an alert, as ``unknown ca``, from the text of a TlsError.

    None when it has sent none. The names are those of RFC 8446 section 6.2, with spaces.
    """
    found = _ALERT.search(text)
    return None if found is None else found[1]
