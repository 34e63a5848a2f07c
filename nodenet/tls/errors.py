"""What goes wrong with TLS; the messages are part of a sentence, the caller names the peer."""

from __future__ import annotations

from nodenet.errors import NodenetError


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
    """The peer's certificate is not valid here; ``number`` is OpenSSL's X509_V_ERR_*."""

    def __init__(self, reason: str, number: int) -> None:
        super().__init__(reason)
        self.number = number


class WrongName(HandshakeFailed):
    """The peer's certificate is valid, and not for ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the certificate is not for {name}")
        self.name = name


class RecordsBroken(TlsError):
    """What came after the handshake cannot be decrypted, or the peer ended with an alert."""
