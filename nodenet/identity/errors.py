"""Errors of identities, certificates and TLS, with the texts the access log shows.

What a connection fails with (`CertificateUnavailable`, `TlsError` and its kinds) has the access
log's text as its message, prefix included (ztunnel: src/proxy.rs, Error). What the CA or a file
says (`CaError`, `InvalidIdentity`) has none; it becomes part of such a text.
"""

from __future__ import annotations

from nodenet.errors import NodenetError, UsageError


class IdentityError(NodenetError):
    """Base of the errors about identities and their certificates."""


class InvalidIdentity(IdentityError, UsageError):
    """A text is no SPIFFE id of the form ``spiffe://TD/ns/NS/sa/SA``. ``text`` is the text."""

    def __init__(self, text: str, reason: str) -> None:
        shown = text if len(text) <= 128 else text[:125] + "..."
        super().__init__(
            f"{shown!r}: {reason}; want spiffe://<trust domain>/ns/<namespace>/sa/<account>"
        )
        self.text = text
        self.reason = reason


class InvalidKey(IdentityError):
    """A text is no private key on P-256. The text is not part of the error."""


class InvalidCertificate(IdentityError):
    """A text or a peer's bytes are no X.509 certificate."""


class CaError(IdentityError):
    """The CA gave no certificate, or one that cannot be used."""


class CaStateError(CaError):
    """The embedded CA's directory cannot be used. ``path`` is the file or directory."""

    def __init__(self, path: object, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}: {reason}", hint=hint)
        self.path = str(path)
        self.reason = reason


class CaResponseInvalid(CaError):
    """What the CA answered is no chain of leaf, intermediates and roots."""


class SanMismatch(CaResponseInvalid):
    """The leaf names other identities than the one asked for."""

    def __init__(self, wanted: object, found: tuple[str, ...]) -> None:
        super().__init__(f"certificate of {', '.join(found) or 'nobody'} given for {wanted}")
        self.wanted = str(wanted)
        self.found = found


class CertificateUnavailable(IdentityError):
    """An identity has no certificate now; the cause is chained when there is one."""

    def __init__(self, identity: object, reason: str) -> None:
        super().__init__(f"identity error: {identity}: {reason}")
        self.identity = str(identity)
        self.reason = reason


class TlsError(NodenetError):
    """Base of what goes wrong with TLS on a connection."""

    def __init__(self, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"tls error: {reason}", hint=hint)
        self.reason = reason


class HandshakeFailed(TlsError):
    """The handshake came to nothing, and none of the kinds below says why."""


class PeerUntrusted(HandshakeFailed):
    """The peer's certificate is not valid here: wrong root, expired, not yet valid.

    ``verify_code`` is OpenSSL's X509_V_ERR number.
    """

    def __init__(self, reason: str, verify_code: int) -> None:
        super().__init__(reason)
        self.verify_code = verify_code


class PeerRefused(HandshakeFailed):
    """The peer sent an alert: it does not take our certificate, or nothing we offer."""


class NotTls(HandshakeFailed):
    """What the peer sends is not TLS."""


class PeerRejected(TlsError):
    """The handshake is done and the peer is not who it must be."""


class NoPeerIdentity(PeerRejected):
    """The peer's certificate has not exactly one URI name, or that is no SPIFFE id."""


class TrustDomainMismatch(PeerRejected):
    """The peer is of another trust domain."""

    def __init__(self, peer: object, own: str) -> None:
        super().__init__(f"peer {peer} is not of the trust domain {own}")
        self.peer = str(peer)
        self.own = own


class SanNotAccepted(PeerRejected):
    """The server is none of the identities that were expected."""

    def __init__(self, found: tuple[str, ...], expected: tuple[str, ...]) -> None:
        super().__init__(
            f"server is {', '.join(found) or 'nobody'}, expected {' or '.join(expected) or 'none'}"
        )
        self.found = found
        self.expected = expected


class AlpnMismatch(PeerRejected):
    """The peer does not speak HTTP/2. ``selected`` is what ALPN came to."""

    def __init__(self, selected: str | None) -> None:
        super().__init__(f"no application protocol in common: {selected or 'none'}, want h2")
        self.selected = selected


class CertificateRevoked(PeerRejected):
    """A CRL lists the peer's certificate or one above it. ``serial`` is the listed one."""

    def __init__(self, serial: int) -> None:
        super().__init__("peer certificate revoked by CRL")
        # the access log's text has a prefix of its own (ztunnel: src/proxy.rs, CertRevoked)
        self.message = "connection closed: peer certificate revoked by CRL"
        self.args = (self.message,)
        self.serial = serial
