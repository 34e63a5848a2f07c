"""Certificates of every kind, and two ends of a handshake without a socket."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.chain import CertificateChain
from nodenet.identity.csr import make_csr, read_csr
from nodenet.identity.issuing import Issuer, make_intermediate, make_leaf, make_root
from nodenet.identity.keys import HASH, PrivateKey
from nodenet.identity.spiffe import Identity
from nodenet.identity.x509 import Certificate


@dataclass
class Authority:
    """A CA in memory. ``roots`` is what its workloads trust."""

    root: Issuer = field(default_factory=lambda: make_root(time.time()))
    intermediate: Issuer | None = None
    trusted: tuple[Certificate, ...] | None = None

    @classmethod
    def with_intermediate(cls) -> Authority:
        root = make_root(time.time())
        return cls(root, make_intermediate(root, time.time()))

    @property
    def roots(self) -> tuple[Certificate, ...]:
        return self.trusted or (self.root.certificate,)

    def chain(self, csr: str, ttl: float = 3600.0, now: float | None = None) -> CertificateChain:
        issuer = self.intermediate or self.root
        leaf = make_leaf(issuer, read_csr(csr), ttl, time.time() if now is None else now)
        between = (self.intermediate.certificate,) if self.intermediate else ()
        return CertificateChain(leaf=leaf, intermediates=between, roots=self.roots)

    def certificate(
        self, identity: Identity, ttl: float = 3600.0, now: float | None = None
    ) -> WorkloadCertificate:
        """A workload's certificate made at ``now``, which may be long ago or far away."""
        key = PrivateKey.generate()
        chain = self.chain(make_csr(key, identity), ttl, now)
        return WorkloadCertificate.from_chain(identity, key, chain, now=chain.leaf.not_before)

    def named(self, identity: Identity, names: list[x509.GeneralName]) -> WorkloadCertificate:
        """A certificate with these names instead of the identity's."""
        issuer = self.intermediate or self.root
        key = PrivateKey.generate()
        now = int(time.time())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(issuer.certificate.library().subject)
            .public_key(key.public())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.fromtimestamp(now - 60, UTC))
            .not_valid_after(datetime.fromtimestamp(now + 3600, UTC))
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        leaf = Certificate.of(builder.sign(issuer.key.signer, HASH))
        between = (self.intermediate.certificate,) if self.intermediate else ()
        return WorkloadCertificate(
            identity=identity, key=key, leaf=leaf, intermediates=between, roots=self.roots
        )


class HandshakeBroke(Exception):
    """One end of a handshake failed. ``other`` is the end that did not."""

    def __init__(self, side: str, error: ssl.SSLError, other: ssl.SSLObject) -> None:
        super().__init__(f"{side}: {error}")
        self.side = side
        self.error = error
        self.other = other

    def others_error(self) -> ssl.SSLError:
        """What the other end sees when it goes on: the alert."""
        try:
            self.other.do_handshake()
            self.other.read(1)
        except ssl.SSLError as error:
            return error
        raise AssertionError("the other end saw nothing")


@dataclass
class Ends:
    """Two ends of a connection in memory."""

    server: ssl.SSLObject
    client: ssl.SSLObject

    def talk(self, data: bytes) -> bytes:
        """Sends it to the server and back."""
        self.client.write(data)
        self.server.write(self.server.read(len(data)))
        return self.client.read(len(data))


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> Ends:
    """Two ends that have shaken hands; HandshakeBroke."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = Ends(server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up))
    waiting = {"client": ends.client, "server": ends.server}
    for side in ("client", "server") * 3:
        if side not in waiting:
            continue
        try:
            waiting[side].do_handshake()
            del waiting[side]
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            other = ends.server if side == "client" else ends.client
            raise HandshakeBroke(side, error, other) from error
    assert not waiting
    return ends


def make_crl(
    issuer: Issuer, serials: Iterable[int], *extensions: tuple[x509.ExtensionType, bool]
) -> x509.CertificateRevocationList:
    """A list of an issuer, of yesterday and over since: lists do not expire."""
    now = datetime.fromtimestamp(int(time.time()), UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.certificate.library().subject)
        .last_update(now - timedelta(days=1))
        .next_update(now - timedelta(hours=1))
    )
    for serial in serials:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer.key.signer, HASH)


def crl_pem(issuer: Issuer, *serials: int) -> bytes:
    """The same as PEM."""
    return make_crl(issuer, serials).public_bytes(serialization.Encoding.PEM)
