"""Making certificates: roots, intermediates, and leaves for workloads.

Pure but for the keys and serial numbers, which are random. Shapes: RFC 5280 section 4.2, SPIFFE
X509-SVID section 4, and what istiod gives workloads (istio: security/pkg/pki/util).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodenet.identity.csr import SigningRequest
from nodenet.identity.keys import HASH, PrivateKey
from nodenet.identity.x509 import Certificate

DAY_SECONDS: Final = 86_400.0
ROOT_SECONDS: Final = 3650 * DAY_SECONDS
INTERMEDIATE_SECONDS: Final = 365 * DAY_SECONDS
#: Longest life of a workload's certificate, whatever is asked for (istiod: MAX_WORKLOAD_CERT_TTL).
MAX_LEAF_SECONDS: Final = 90 * DAY_SECONDS
#: Certificates count whole seconds.
MIN_LEAF_SECONDS: Final = 1.0
#: Certificates start this long before they are made: peers' clocks may be behind.
SKEW_SECONDS: Final = 60.0
#: But not more than this part of their life, or a short one would be in its second half at birth.
SKEW_OF_LIFE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """A certificate that signs, and its key."""

    key: PrivateKey = field(repr=False)
    certificate: Certificate


def make_root(now: float) -> Issuer:
    """A new root with a new key. ``now`` is Unix time."""
    key = PrivateKey.generate()
    serial = x509.random_serial_number()
    # a name of its own: with several roots in a bundle, peers look them up by name
    name = _ca_name("root", serial)
    builder = _authority(name, key, serial, now, now + ROOT_SECONDS, path_length=1)
    made = builder.issuer_name(name).sign(key.signer, HASH)
    return Issuer(key=key, certificate=Certificate.of(made))


def make_intermediate(root: Issuer, now: float) -> Issuer:
    """A new intermediate under a root; it does not outlive it."""
    key = PrivateKey.generate()
    serial = x509.random_serial_number()
    end = min(now + INTERMEDIATE_SECONDS, root.certificate.not_after)
    builder = _authority(
        _ca_name("intermediate", serial), key, serial, now, end, path_length=0
    ).add_extension(_key_id_of(root), critical=False)
    made = builder.issuer_name(root.certificate.library().subject).sign(root.key.signer, HASH)
    return Issuer(key=key, certificate=Certificate.of(made))


def make_leaf(issuer: Issuer, request: SigningRequest, ttl: float, now: float) -> Certificate:
    """A workload's certificate: it lives ``ttl`` seconds, capped, from a little before ``now``."""
    end = min(now + min(ttl, MAX_LEAF_SECONDS), issuer.certificate.not_after)
    start = now - min(SKEW_SECONDS, (end - now) * SKEW_OF_LIFE)
    usage = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    name = x509.UniformResourceIdentifier(str(request.identity))
    builder = (
        _builder(request.public_key, x509.random_serial_number(), start, end)
        .subject_name(x509.Name([]))
        .issuer_name(issuer.certificate.library().subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(_key_id_of(issuer), critical=False)
        # critical because the subject is empty (RFC 5280 section 4.2.1.6)
        .add_extension(x509.SubjectAlternativeName([name]), critical=True)
    )
    return Certificate.of(builder.sign(issuer.key.signer, HASH))


def _authority(
    name: x509.Name, key: PrivateKey, serial: int, now: float, end: float, *, path_length: int
) -> x509.CertificateBuilder:
    return (
        _builder(key.public(), serial, now - SKEW_SECONDS, end)
        .subject_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public()), critical=False)
    )


def _builder(
    key: ec.EllipticCurvePublicKey, serial: int, start: float, end: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(datetime.fromtimestamp(int(start), UTC))
        # certificates count whole seconds and include the last one
        .not_valid_after(datetime.fromtimestamp(int(end), UTC))
    )


def _ca_name(kind: str, serial: int) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "nodenet"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"nodenet {kind} {serial >> 96:016x}"),
        ]
    )


def _key_id_of(issuer: Issuer) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public())


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
