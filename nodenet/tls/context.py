"""How TLS connections of one side are made: versions, names, what is shown and what is believed.

A context is set up once and then shared by connections; other certificates need another context.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final

from OpenSSL import SSL, crypto

from nodenet.tls.errors import CredentialsUnusable, HandshakeFailed, PeerUntrusted, WrongName

#: Every connection shows its certificate: nothing is resumed, so nothing is kept for that.
_OPTIONS: Final = (
    SSL.OP_NO_TICKET
    | SSL.OP_NO_RENEGOTIATION
    | SSL.OP_NO_COMPRESSION
    | SSL.OP_CIPHER_SERVER_PREFERENCE
)
#: SSL_MODE_ENABLE_PARTIAL_WRITE (ssl.h), which pyOpenSSL sets and does not name. With it a write
#: ends after one record of 16 KiB.
_PARTIAL_WRITE: Final = 0x1
#: A client that asks to resume is an error without a name for that, and a full handshake with one.
_SESSION_ID: Final = b"nodenet"
#: Of the records' layer, which says nothing else; and behind each error of a handshake.
_VAGUE: Final = frozenset({"record layer failure"})
#: X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
NOT_YET_VALID: Final = 9
EXPIRED: Final = 10
#: X509_V_ERR_INVALID_PURPOSE: no serverAuth at a server, no clientAuth at a client.
WRONG_PURPOSE: Final = 26
#: X509_V_ERR_* (x509_vfy.h) as OpenSSL says them, where its name says less.
_WORDS: Final = {
    NOT_YET_VALID: "certificate is not yet valid",
    EXPIRED: "certificate has expired",
    18: "self-signed certificate",
    19: "self-signed certificate in certificate chain",
    20: "unable to get local issuer certificate",
    21: "unable to verify the first certificate",
    WRONG_PURPOSE: "unsuitable certificate purpose",
}
#: What a certificate says of its time, made one kind by pyOpenSSL (RFC 5280 section 4.1.2.5.2).
_MOMENT: Final = re.compile(rb"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z")
#: X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_NAME_MISMATCHES: Final = frozenset({62, 64})


class Side(Enum):
    """Which end of the connections a context is for."""

    CLIENT = "client"
    SERVER = "server"


class Context:
    """See the module. A server asks for no certificate until it knows authorities.

    A server takes a peer that offers none of its ALPN names all the same; Go's does only when the
    peer offers none at all.
    """

    def __init__(
        self,
        side: Side,
        *,
        alpn: Sequence[str] = (),
        least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
        ciphers: Sequence[str] = (),
    ) -> None:
        """``ciphers`` are OpenSSL's names, of TLS 1.2; CredentialsUnusable when none is known."""
        self.side = side
        method = SSL.TLS_SERVER_METHOD if side is Side.SERVER else SSL.TLS_CLIENT_METHOD
        self.openssl = context = SSL.Context(method)
        """What an `engine.Engine` is made of."""
        context.set_options(_OPTIONS)
        store = context.get_cert_store()
        assert store is not None, "a context has one"
        store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        context.clear_mode(_PARTIAL_WRITE)
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        context.set_min_proto_version(int(least))
        names = [name.encode("ascii") for name in alpn]
        try:
            if ciphers:
                context.set_cipher_list(":".join(ciphers).encode("ascii"))
        except SSL.Error as error:
            raise CredentialsUnusable(reason(error)) from error
        if side is Side.CLIENT:
            context.set_verify(SSL.VERIFY_PEER, _verify)
            if names:
                context.set_alpn_protos(names)
            return
        context.set_session_id(_SESSION_ID)
        if names:
            context.set_alpn_select_callback(
                # in our order
                lambda _, offered: next(
                    (name for name in names if name in offered), SSL.NO_OVERLAPPING_PROTOCOLS
                )
            )

    def load_cert_chain(self, certfile: Path, keyfile: Path) -> None:
        """Shows a certificate. Blocking; CredentialsUnusable, OSError."""
        context = self.openssl
        _readable(certfile, keyfile)
        try:
            context.use_certificate_chain_file(certfile)
            context.use_privatekey_file(keyfile)
            context.check_privatekey()
        except SSL.Error as error:
            raise CredentialsUnusable(reason(error)) from error

    def load_verify_locations(self, cafile: Path) -> None:
        """Believes these authorities; a server asks for certificates from then on.

        Whatever is in the file is believed, as by Go, be it signed by another authority or not.
        Blocking; CredentialsUnusable, OSError.
        """
        _readable(cafile)
        try:
            self.openssl.load_verify_locations(cafile)
        except SSL.Error as error:
            raise CredentialsUnusable(reason(error)) from error
        if self.side is Side.SERVER:
            mode = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT
            self.openssl.set_verify(mode, _verify)


class Verdict:
    """What the handshake found out about the peer's certificate; OpenSSL itself keeps a number."""

    __slots__ = ("depth", "moment", "name", "number")

    def __init__(self, name: str | None) -> None:
        self.name = name
        """Whom the certificate must name; None: anybody."""
        self.number = 0
        """X509_V_ERR_* of what is wrong with it, 0 for nothing."""
        self.depth = 0
        """Whose certificate that is: 0 the peer's own, more a CA's."""
        self.moment = ""
        """When that one ended, or begins, where it is about that."""

    def error(self, failure: str) -> HandshakeFailed:
        """Why a handshake failed, whose ``failure`` OpenSSL names."""
        if self.number in _NAME_MISMATCHES and self.name is not None:
            return WrongName(self.name)
        if self.number:
            words = _words(self.number)
            if self.depth and self.moment:
                words = f"CA's {words}"
            if self.moment:
                words = f"{words} ({self.moment})"
            return PeerUntrusted(words, self.number, self.depth)
        return HandshakeFailed(failure)


def _verify(
    connection: SSL.Connection, certificate: crypto.X509, number: int, depth: int, ok: int
) -> bool:
    """Asked by OpenSSL for each certificate of a chain, and for its name."""
    if not ok:
        verdict = connection.get_app_data()
        assert isinstance(verdict, Verdict)
        verdict.number, verdict.depth = number, depth
        if number == EXPIRED:
            verdict.moment = _moment(certificate.get_notAfter())
        elif number == NOT_YET_VALID:
            verdict.moment = _moment(certificate.get_notBefore())
    return bool(ok)


def untimely(pem: bytes, now: datetime) -> str | None:
    """Why peers whose clock shows ``now`` do not take a certificate, None when it is its time.

    Of several certificates the first one is looked at, which is the one that is shown.
    CredentialsUnusable.
    """
    try:
        found = crypto.load_certificate(crypto.FILETYPE_PEM, pem)
    except crypto.Error as error:
        raise CredentialsUnusable("no certificate in PEM") from error
    # texts of one length, which sort as the moments do
    clock = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    begin, end = _moment(found.get_notBefore()), _moment(found.get_notAfter())
    if end and end < clock:
        return f"{_WORDS[EXPIRED]} ({end})"
    if begin and begin > clock:
        return f"{_WORDS[NOT_YET_VALID]} ({begin})"
    return None


def _moment(found: bytes | None) -> str:
    """``2026-01-01T00:00:00Z``; empty for what is no moment."""
    parts = _MOMENT.fullmatch(found or b"")
    if parts is None:
        return ""
    year, month, day, hour, minute, second = (part.decode("ascii") for part in parts.groups())
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}Z"


def reason(error: SSL.Error) -> str:
    """What OpenSSL says of an error, in a few words of lower case.

    It says what went wrong first, and then in which of its parts.
    """
    found = error.args[0] if error.args else ()
    if isinstance(found, list):
        texts = [str(each[-1]).lower() for each in found if each[-1]]
        telling = [text for text in texts if not text.endswith(" lib") and text not in _VAGUE]
        return (telling or texts or ["no reason given"])[0]
    return str(error.args[-1]).lower() if error.args else "no reason given"


def _readable(*paths: Path) -> None:
    """OSError where OpenSSL would say ``system lib``."""
    for path in paths:
        with path.open("rb"):
            pass


def _words(number: int) -> str:
    if number in _WORDS:
        return _WORDS[number]
    codes = SSL.X509VerificationCodes
    names = [each for each in vars(codes) if getattr(codes, each) == number]
    if not names:
        return f"certificate error {number}"
    return names[0].removeprefix("ERR_").lower().replace("_", " ")
