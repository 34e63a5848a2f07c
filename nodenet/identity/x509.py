"""What nodenet reads from an X.509 certificate, and PEM texts with several of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from nodenet.identity.errors import InvalidCertificate
from nodenet.identity.keys import public_der

#: What the library raises for bytes it cannot make sense of, wherever it looks at them.
UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """One certificate: its bytes and the fields that are looked at. Times are Unix time."""

    der: bytes
    serial: int
    issuer: bytes
    """The issuer's name, DER."""
    subject: bytes
    """The name of its owner, DER; of a workload's certificate empty."""
    not_before: float
    not_after: float
    uris: tuple[str, ...]
    """The URI names, in their order."""

    @classmethod
    def parse(cls, der: bytes) -> Self:
        """From DER; InvalidCertificate."""
        try:
            return cls._of(x509.load_der_x509_certificate(der))
        except UNREADABLE as error:
            raise InvalidCertificate(f"certificate: cannot be read: {error}") from error

    @classmethod
    def parse_pem(cls, text: str) -> tuple[Self, ...]:
        """All certificates of a PEM text, in order, none when it has none; InvalidCertificate."""
        if "-----BEGIN" not in text:
            return ()
        try:
            return tuple(cls._of(c) for c in x509.load_pem_x509_certificates(text.encode()))
        except UNREADABLE as error:
            raise InvalidCertificate(f"certificate: cannot be read: {error}") from error

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """From a certificate of the library; InvalidCertificate."""
        try:
            return cls._of(certificate)
        except UNREADABLE as error:
            raise InvalidCertificate(f"certificate: cannot be read: {error}") from error

    @classmethod
    def _of(cls, certificate: x509.Certificate) -> Self:
        return cls(
            der=certificate.public_bytes(serialization.Encoding.DER),
            serial=certificate.serial_number,
            issuer=certificate.issuer.public_bytes(),
            subject=certificate.subject.public_bytes(),
            not_before=certificate.not_valid_before_utc.timestamp(),
            not_after=certificate.not_valid_after_utc.timestamp(),
            uris=_uris(certificate),
        )

    @property
    def pem(self) -> str:
        """PEM, with a newline at its end."""
        return ssl.DER_cert_to_PEM_cert(self.der)

    @property
    def middle(self) -> float:
        """The middle of its life, Unix time."""
        return (self.not_before + self.not_after) / 2

    @property
    def public_key_der(self) -> bytes:
        """SubjectPublicKeyInfo; InvalidCertificate when the key is of no known kind."""
        try:
            return public_der(self.library().public_key())
        except UNREADABLE as error:
            raise InvalidCertificate(f"certificate: its key cannot be read: {error}") from error

    def library(self) -> x509.Certificate:
        """The certificate as the library has it, for what is not among the fields."""
        return x509.load_der_x509_certificate(self.der)

    def __repr__(self) -> str:
        return f"Certificate(serial={self.serial:x}, uris={self.uris})"


def _uris(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))
