"""Who is at the other end of a TLS connection: the checks after the handshake, and its errors.

The handshake has verified the chain up to a root; names are checked here, because to OpenSSL a
name is a host name (ztunnel: src/tls/workload.rs does it within the handshake).
"""

from __future__ import annotations

import functools
import logging
import ssl
from typing import Any, Final

from nodenet.identity.errors import (
    AlpnMismatch,
    HandshakeFailed,
    InvalidCertificate,
    InvalidIdentity,
    NoPeerIdentity,
    NotTls,
    PeerRefused,
    PeerUntrusted,
    SanNotAccepted,
    TlsError,
    TrustDomainMismatch,
)
from nodenet.identity.spiffe import Identity
from nodenet.identity.tls import ALPN
from nodenet.identity.x509 import Certificate

logger = logging.getLogger(__name__)

#: Certificates of peers that are kept parsed, some KiB each: the pods that talk to one node.
_PEERS_KEPT: Final = 2048
#: Lists of accepted servers that are kept parsed: one a destination service.
_EXPECTED_KEPT: Final = 4096

_parse: Final = functools.lru_cache(_PEERS_KEPT)(Certificate.parse)


def peer_certificate(connection: ssl.SSLObject) -> Certificate | None:
    """The certificate the peer showed; None when it showed none. Parsed once, then shared.

    InvalidCertificate when it is one that OpenSSL takes and nodenet cannot read.
    """
    der = connection.getpeercert(True)
    return None if der is None else _parse(der)


def peer_chain(connection: ssl.SSLObject) -> tuple[Certificate, ...]:
    """The chain as it was verified: the peer's certificate first, a root last.

    The peer's certificate alone where Python does not tell the chain; empty when it showed none.
    """
    chain = _verified_chain(connection)
    if not chain:
        leaf = peer_certificate(connection)
        return () if leaf is None else (leaf,)
    return tuple(map(_parse, chain))


def peer_identity(connection: ssl.SSLObject) -> Identity | None:
    """Who the peer is: the one URI name of its certificate; None when that is no SPIFFE id."""
    try:
        certificate = peer_certificate(connection)
    except InvalidCertificate:
        return None
    if certificate is None or len(certificate.uris) != 1:
        return None
    return _identity(certificate.uris[0])


def check_alpn(connection: ssl.SSLObject) -> None:
    """AlpnMismatch unless the two sides agreed on HTTP/2."""
    selected = connection.selected_alpn_protocol()
    if selected != ALPN:
        raise AlpnMismatch(selected)


def check_client(connection: ssl.SSLObject, trust_domain: str) -> Identity:
    """Who the client of an accepted connection is.

    ``trust_domain`` is that of the local certificate, and must be the client's too. AlpnMismatch,
    NoPeerIdentity, TrustDomainMismatch. What the client may do is decided elsewhere.
    """
    check_alpn(connection)
    identity = peer_identity(connection)
    if identity is None:
        raise NoPeerIdentity("peer certificate has no SPIFFE id, or several names")
    if identity.trust_domain != trust_domain:
        raise TrustDomainMismatch(identity, trust_domain)
    return identity


def check_server(connection: ssl.SSLObject, expected: tuple[str, ...]) -> Identity:
    """Which of the ``expected`` SPIFFE ids the server of a dialled connection is.

    One of its URI names has to be in the list. Entries that are no SPIFFE ids of workloads count
    for nothing, so a list without any fails always. AlpnMismatch, SanNotAccepted.
    """
    check_alpn(connection)
    accepted = _accepted(expected)
    try:
        certificate = peer_certificate(connection)
    except InvalidCertificate as error:
        raise NoPeerIdentity(str(error)) from error
    uris = () if certificate is None else certificate.uris
    for uri in uris:
        identity = accepted.get(uri)
        if identity is not None:
            return identity
    raise SanNotAccepted(uris, expected)


def tls_error(error: ssl.SSLError | OSError) -> TlsError:
    """What a failure of the ssl module means, for the access log; the caller chains it.

    Also for failures after the handshake: in TLS 1.3 a client learns that its certificate was
    refused when it first reads.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return PeerUntrusted(f"peer certificate: {error.verify_message}", error.verify_code)
    reason = getattr(error, "reason", None)
    if not reason:
        return HandshakeFailed(error.strerror or str(error) or type(error).__name__)
    text = reason.lower().replace("_", " ")
    if reason in _NOT_TLS:
        return NotTls(f"not TLS: {text}")
    if "_ALERT_" in reason:
        # OpenSSL says so of alerts that came, not of those it sends
        return PeerRefused(f"refused by the peer: {text.partition(' alert ')[2]}")
    return HandshakeFailed(text)


_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "BAD_RECORD_TYPE"}
)


def _verified_chain(connection: ssl.SSLObject) -> list[bytes]:
    if hasattr(connection, "get_verified_chain"):  # Python 3.13
        return list(connection.get_verified_chain())
    raw: Any = getattr(connection, "_sslobj", None)
    chain = raw.get_verified_chain() if hasattr(raw, "get_verified_chain") else None
    return [certificate.public_bytes(_ENCODING_DER) for certificate in chain or ()]


#: `_ssl.ENCODING_DER`: X509_FILETYPE_ASN1 of OpenSSL.
_ENCODING_DER: Final = 2


@functools.lru_cache(_PEERS_KEPT)
def _identity(uri: str) -> Identity | None:
    try:
        return Identity.parse(uri)
    except InvalidIdentity:
        return None


@functools.lru_cache(_EXPECTED_KEPT)
def _accepted(expected: tuple[str, ...]) -> dict[str, Identity]:
    accepted = {}
    for text in expected:
        try:
            accepted[text] = Identity.parse(text)
        except InvalidIdentity as error:
            logger.warning("name of a server skipped: %s", error)
    return accepted
