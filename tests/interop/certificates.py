"""A CA and what it signed: a server for this host, a client, and a client of a foreign CA."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MINUTES: Final = datetime.timedelta(minutes=5)
DAY: Final = datetime.timedelta(days=1)
BOTH: Final = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)


@dataclass(frozen=True, slots=True)
class Pair:
    """Paths of a certificate and its key, in PEM."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files below one directory."""

    ca: Path
    server: Pair
    client: Pair
    foreign_ca: Path
    foreign_client: Pair


class Authority:
    """A CA that lives as long as a test."""

    def __init__(
        self,
        name: str,
        *,
        issuer: Authority | None = None,
        valid: tuple[datetime.timedelta, datetime.timedelta] = (-MINUTES, 2 * DAY),
    ) -> None:
        """Signed by itself, or by ``issuer``; ``valid`` as in `issue`."""
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        signer = issuer or self
        builder = signer._builder(self._name, self.key, *valid).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = builder.sign(signer.key, hashes.SHA256())

    def write(self, path: Path) -> Path:
        """The CA's certificate as a file."""
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(
        self,
        folder: Path,
        name: str,
        *hosts: str,
        valid: tuple[datetime.timedelta, datetime.timedelta] = (-MINUTES, DAY),
        purposes: Sequence[x509.ObjectIdentifier] = BOTH,
        names: Sequence[x509.GeneralName] = (),
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Pair:
        """A certificate as files named after it, by default for client and server use.

        ``valid`` is from when until when, seen from now; ``names`` are more than ``hosts`` can say.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key, *valid).add_extension(
            x509.ExtendedKeyUsage(purposes), critical=False
        )
        if hosts or names:
            alternatives = [*(_host(host) for host in hosts), *names]
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        made = builder.sign(self.key, hashes.SHA256())
        pair.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begin: datetime.timedelta,
        end: datetime.timedelta,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begin)
            .not_valid_after(now + end)
        )


def make(folder: Path) -> Certificates:
    """All of them, new."""
    authority, foreign = Authority("nodenet test CA"), Authority("foreign CA")
    return Certificates(
        ca=authority.write(folder / "ca.crt"),
        server=authority.issue(folder, "server", "localhost", "127.0.0.1", "::1"),
        client=authority.issue(folder, "client"),
        foreign_ca=foreign.write(folder / "foreign-ca.crt"),
        foreign_client=foreign.issue(folder, "foreign"),
    )


def self_signed(folder: Path, name: str, *hosts: str) -> Pair:
    """A certificate that only vouches for itself."""
    own = Authority(name)
    return own.issue(folder, name, *hosts, key=own.key)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
