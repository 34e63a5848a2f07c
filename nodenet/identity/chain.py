"""What a CA answers: leaf, intermediates, roots; and reading it from the wire's list of texts.

Source: ztunnel: src/identity/caclient.rs, istio.v1.auth.IstioCertificateResponse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nodenet.identity.errors import CaResponseInvalid, InvalidCertificate, SanMismatch
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateChain:
    """A CA's answer. ``roots`` is everything accepted as a root, at least one."""

    leaf: Certificate
    intermediates: tuple[Certificate, ...] = ()
    roots: tuple[Certificate, ...]


class CaClient(Protocol):
    """Whoever signs."""

    async def sign(self, csr_pem: str, identity: Identity, ttl: float) -> CertificateChain:
        """A chain for the request, which is for ``identity``; ``ttl`` seconds are asked for.

        CaError. The caller sets the deadline; a cancelled call leaves nothing behind.
        """
        ...  # pragma: no cover


def chain_from_response(texts: Sequence[str], wanted: Identity | None) -> CertificateChain:
    """The chain in a response: the leaf's text, then intermediates, the roots in the last one.

    ``wanted``: whose certificate it must be, None where the CA decides. CaResponseInvalid when the
    list is empty, has one element or none that can be read; SanMismatch.
    """
    if not texts:
        raise CaResponseInvalid("CA response: no certificate")
    if len(texts) == 1:
        raise CaResponseInvalid("CA response: one certificate only, no root")
    try:
        parsed = [Certificate.parse_pem(text) for text in texts]
    except InvalidCertificate as error:
        raise CaResponseInvalid(f"CA response: {error}") from error
    if not parsed[0] or not parsed[-1]:
        raise CaResponseInvalid(f"CA response: no {'root' if parsed[0] else 'leaf'} in its text")
    leaf, *above = parsed[0]
    if wanted is not None and leaf.uris != (str(wanted),):
        raise SanMismatch(wanted, leaf.uris)
    middle = (certificate for text in parsed[1:-1] for certificate in text)
    return CertificateChain(leaf=leaf, intermediates=(*above, *middle), roots=parsed[-1])
