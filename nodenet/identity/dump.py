"""Certificates as ``/config_dump`` shows them.

Shape: ztunnel: src/admin.rs, CertsDump; istioctl ztunnel-config certificates reads it. Keys are
not part of it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable

import msgspec

from nodenet.identity.entry import EntrySnapshot
from nodenet.identity.x509 import Certificate


class CertificateDump(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One certificate."""

    pem: str
    """The PEM text in base64."""
    serial_number: str
    """Decimal."""
    valid_from: str
    """RFC 3339, whole seconds, UTC."""
    expiration_time: str


class IdentityDump(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One identity and what it has."""

    identity: str
    state: str
    cert_chain: list[CertificateDump]
    """Leaf first; empty when there is none."""
    root_certs: list[CertificateDump]


def dump_certificate(certificate: Certificate) -> CertificateDump:
    """One certificate."""
    return CertificateDump(
        pem=base64.b64encode(certificate.pem.encode()).decode(),
        serial_number=str(certificate.serial),
        valid_from=_seconds(certificate.not_before),
        expiration_time=_seconds(certificate.not_after),
    )


def dump_identities(entries: Iterable[EntrySnapshot]) -> list[IdentityDump]:
    """The entries of a store's snapshot, in their order."""
    return [_dump(entry) for entry in entries]


def _dump(entry: EntrySnapshot) -> IdentityDump:
    own = entry.certificate
    chain = () if own is None else (own.leaf, *own.intermediates)
    roots = () if own is None else own.roots
    return IdentityDump(
        identity=str(entry.identity),
        state=entry.state_text,
        cert_chain=[dump_certificate(certificate) for certificate in chain],
        root_certs=[dump_certificate(certificate) for certificate in roots],
    )


def _seconds(moment: float) -> str:
    """``2026-11-21T10:42:07Z``; certificates count whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
