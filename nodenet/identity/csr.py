"""Certificate signing requests: an empty subject and one URI name, marked critical.

Source: ztunnel: src/tls/csr.rs; RFC 5280 section 4.2.1.6 wants the mark when the subject is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nodenet.identity.errors import CaError, InvalidIdentity
from nodenet.identity.keys import HASH, PrivateKey
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import UNREADABLE

#: A request is under 1 KiB; whoever sends more means harm.
MAX_CSR_BYTES: Final = 16 * 1024


class CsrInvalid(CaError):
    """A signing request that the CA does not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningRequest:
    """What a request asks for. ``public_key`` belongs to whoever signed it."""

    identity: Identity
    public_key: ec.EllipticCurvePublicKey


def make_csr(key: PrivateKey, identity: Identity) -> str:
    """A request for a certificate of ``identity``, PEM."""
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(identity))])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = builder.add_extension(names, critical=True).sign(key.signer, HASH)
    return csr.public_bytes(serialization.Encoding.PEM).decode()


def read_csr(pem: str) -> SigningRequest:
    """What a PEM request asks for; CsrInvalid.

    Its signature must be that of its key, which must be on P-256, and it must ask for exactly one
    name, a SPIFFE id.
    """
    if len(pem) > MAX_CSR_BYTES:
        raise CsrInvalid(f"signing request: {len(pem)} bytes; at most {MAX_CSR_BYTES}")
    try:
        csr = x509.load_pem_x509_csr(pem.encode())
        key = csr.public_key()
        proven = csr.is_signature_valid
        names = list(csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (*UNREADABLE, x509.ExtensionNotFound) as error:
        raise CsrInvalid(f"signing request: cannot be read: {error}") from error
    if not proven:
        raise CsrInvalid("signing request: not signed with its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CsrInvalid("signing request: the key is not on P-256")
    if len(names) != 1 or not isinstance(names[0], x509.UniformResourceIdentifier):
        raise CsrInvalid("signing request: wants other names than one URI")
    try:
        identity = Identity.parse(names[0].value)
    except InvalidIdentity as error:
        raise CsrInvalid(f"signing request: {error}") from error
    return SigningRequest(identity=identity, public_key=key)
