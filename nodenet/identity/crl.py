"""Certificate revocation lists: reading them, and asking whether a peer is on one.

Source: ztunnel: src/tls/crl.rs; RFC 5280 section 6.3. A list counts for the certificates of
whoever signed it, so it is looked up by the issuer's key as the handshake has verified it; a list
that no issuer in sight has signed counts for nothing. What no list tells of is allowed, and so is
what an old list does not tell of: a list does not expire here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from cryptography import x509

from nodenet.identity.errors import CertificateRevoked, IdentityError
from nodenet.identity.x509 import UNREADABLE, Certificate

#: A million revoked certificates; the whole is read into memory.
MAX_CRL_BYTES: Final = 32 << 20
#: Issuers whose serials are kept together: roots and intermediates of every peer.
_ISSUERS_KEPT: Final = 256

_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
_SEQUENCE: Final = 0x30


class CrlInvalid(IdentityError):
    """A file that should hold revocation lists cannot be read as such."""


class RevocationList:
    """One list: who is said to have signed it, and the serial numbers on it."""

    __slots__ = ("_library", "_signed_by", "issuer", "serials")

    def __init__(self, library: x509.CertificateRevocationList) -> None:
        """CrlInvalid when it is of a kind that is not kept whole in one list."""
        self._library = library
        self._signed_by: dict[bytes, bool] = {}
        self.issuer = library.issuer.rfc4514_string()
        """For people; a name proves nothing."""
        for extension in library.extensions:
            kind = extension.value
            if isinstance(kind, x509.DeltaCRLIndicator):
                raise CrlInvalid(f"CRL of {self.issuer}: a delta CRL; give the complete one")
            if isinstance(kind, x509.IssuingDistributionPoint) and kind.indirect_crl:
                raise CrlInvalid(f"CRL of {self.issuer}: an indirect CRL; give the issuer's own")
        self.serials = frozenset(entry.serial_number for entry in library)

    def is_signed_by(self, issuer: Certificate) -> bool:
        """Whether this issuer signed it, and may. Looked at once an issuer: it reads the list."""
        answer = self._signed_by.get(issuer.der)
        if answer is None:
            if len(self._signed_by) >= _ISSUERS_KEPT:
                self._signed_by.clear()
            answer = self._signed_by[issuer.der] = self._verify(issuer)
        return answer

    def _verify(self, issuer: Certificate) -> bool:
        certificate = issuer.library()
        try:
            usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
            if not usage.crl_sign:
                return False
        except x509.ExtensionNotFound:
            pass  # no word about its use: any (RFC 5280 section 4.2.1.3)
        try:
            # the library says TypeError for kinds of keys that cannot sign
            return self._library.is_signature_valid(
                certificate.public_key()  # type: ignore[arg-type]
            )
        except UNREADABLE:
            return False


def read_lists(data: bytes) -> tuple[RevocationList, ...]:
    """The lists of a file, PEM or DER, one after the other; none when it is empty. CrlInvalid."""
    if not data.strip():
        return ()
    if len(data) > MAX_CRL_BYTES:
        raise CrlInvalid(f"{len(data)} bytes of CRL; at most {MAX_CRL_BYTES}")
    try:
        if b"-----BEGIN" in data:
            found = [x509.load_pem_x509_crl(text) for text in _PEM.findall(data)]
        else:
            found = [x509.load_der_x509_crl(der) for der in _split_der(data)]
        if not found:
            raise CrlInvalid("no CRL in it")
        return tuple(RevocationList(crl) for crl in found)
    except UNREADABLE as error:
        raise CrlInvalid(f"no CRL: {error}") from error


def _split_der(data: bytes) -> Iterable[bytes]:
    """The SEQUENCEs that stand one after the other (X.690 section 8.1.3)."""
    at = 0
    while at < len(data):
        if data[at] != _SEQUENCE or at + 2 > len(data):
            raise ValueError(f"no DER at byte {at}")
        size = data[at + 1]
        start = at + 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[start : start + count], "big")
            start += count
        if start + size > len(data):
            raise ValueError(f"cut off after byte {at}")
        yield data[at : start + size]
        at = start + size


class Revocations:
    """What some lists say about chains. The lists never change; a new file makes a new object."""

    def __init__(self, lists: Sequence[RevocationList] = ()) -> None:
        self.lists = tuple(lists)
        self._by_issuer: dict[bytes, frozenset[int]] = {}

    def revoked(
        self, chain: Sequence[Certificate], issuers: Iterable[Certificate] = ()
    ) -> Certificate | None:
        """The first certificate of a peer's chain that is revoked: a leaf or an intermediate.

        ``chain`` is as `peer.peer_chain` gives it; its root is trusted and not looked at.
        ``issuers`` are looked through for the leaf's when the chain is the leaf alone.
        """
        if not self.lists:
            return None
        if len(chain) == 1:
            own = chain[0]
            above = [issuer for issuer in issuers if issuer.subject == own.issuer]
            return own if any(own.serial in self._serials(issuer) for issuer in above) else None
        for certificate, issuer in zip(chain, chain[1:], strict=False):
            if certificate.serial in self._serials(issuer):
                return certificate
        return None

    def check(self, chain: Sequence[Certificate], issuers: Iterable[Certificate] = ()) -> None:
        """CertificateRevoked when `revoked` finds one."""
        found = self.revoked(chain, issuers)
        if found is not None:
            raise CertificateRevoked(found.serial)

    def unsigned(self, issuers: Iterable[Certificate]) -> list[RevocationList]:
        """The lists that none of these issuers signed."""
        known = list(issuers)
        return [one for one in self.lists if not any(one.is_signed_by(i) for i in known)]

    def _serials(self, issuer: Certificate) -> frozenset[int]:
        """Everything that lists of this issuer revoke. Lists of one issuer are added up."""
        serials = self._by_issuer.get(issuer.der)
        if serials is None:
            if len(self._by_issuer) >= _ISSUERS_KEPT:
                self._by_issuer.clear()
            signed = [one.serials for one in self.lists if one.is_signed_by(issuer)]
            serials = signed[0] if len(signed) == 1 else frozenset().union(*signed)
            self._by_issuer[issuer.der] = serials
        return serials
