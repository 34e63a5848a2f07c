"""The TLS settings made from a workload's certificate: mutual, TLS 1.3, HTTP/2, no resumption.

Source: ztunnel: src/tls/workload.rs. A context is never changed once it is made, because
connections in the middle of a handshake share it: a renewed certificate gets contexts of its own,
and connections made with the old ones go on.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nodenet.errors import NotSupported
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.errors import IdentityError

ALPN: Final = "h2"
#: The hybrid group of post-quantum key exchange (draft-kwiatkowski-tls-ecdhe-mlkem).
PQC_GROUP: Final = "X25519MLKEM768"
#: With TLS 1.2: what rustls has (ztunnel: src/tls/lib.rs).
_TLS12_CIPHERS: Final = (
    "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256:"
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES128-GCM-SHA256"
)
#: Where a key may lie for a moment when memory files cannot be opened by name: both are tmpfs.
_TMPFS: Final = ("/dev/shm", "/run")


class Compliance(Enum):
    """What COMPLIANCE_POLICY may say."""

    NONE = ""
    PQC = "pqc"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Settings that all contexts of a proxy share."""

    tls12: bool = False
    """TLS12_ENABLED: TLS 1.2 is allowed too."""
    compliance: Compliance = Compliance.NONE


class TlsUnusable(IdentityError):
    """OpenSSL does not take a certificate, its key or its roots."""


class TlsContexts:
    """Server and client contexts, made at most once a certificate and gone with it.

    A context takes 1 to 2 ms to make, 30 KiB to keep, and is made when it is first asked for.
    """

    def __init__(self, options: TlsOptions | None = None) -> None:
        """NotSupported when OpenSSL here cannot keep the compliance policy."""
        self._options = options or TlsOptions()
        if self._options.compliance is Compliance.PQC:
            _only_pqc(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._servers: _Cache = weakref.WeakKeyDictionary()
        self._clients: _Cache = weakref.WeakKeyDictionary()

    def server(self, certificate: WorkloadCertificate) -> ssl.SSLContext:
        """For accepted connections. The client must show a certificate. TlsUnusable.

        The peer's trust domain and ALPN are checked after the handshake: `peer.check_client`.
        """
        context = self._servers.get(certificate)
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # no tickets, so nothing can be resumed: every connection shows its certificate
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
            self._servers[certificate] = self._set_up(context, certificate)
        return context

    def client(self, certificate: WorkloadCertificate) -> ssl.SSLContext:
        """For dialled connections; give ``wrap_bio`` no server name. TlsUnusable.

        Who the server is and ALPN are checked after the handshake: `peer.check_server`.
        """
        context = self._clients.get(certificate)
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            self._clients[certificate] = self._set_up(context, certificate)
        return context

    def _set_up(self, context: ssl.SSLContext, certificate: WorkloadCertificate) -> ssl.SSLContext:
        options = self._options
        context.minimum_version = (
            ssl.TLSVersion.TLSv1_2 if options.tls12 else ssl.TLSVersion.TLSv1_3
        )
        context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        # whatever the CA calls a root is one, as with rustls, even if another signed it
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols([ALPN])
        if options.tls12:
            context.set_ciphers(_TLS12_CIPHERS)
        if options.compliance is Compliance.PQC:
            _only_pqc(context)
        try:
            context.load_verify_locations(cadata=certificate.roots_pem)
            with _readable(certificate.key.pem() + certificate.chain_pem.encode()) as path:
                context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise TlsUnusable(
                f"certificate of {certificate.identity}: OpenSSL does not take it: "
                f"{error.reason or 'no reason given'}"
            ) from error
        return context


_Cache = weakref.WeakKeyDictionary[WorkloadCertificate, ssl.SSLContext]


def _only_pqc(context: ssl.SSLContext) -> None:
    """Lets a context agree on the hybrid group only; NotSupported."""
    try:
        if hasattr(context, "set_groups"):  # Python 3.15
            context.set_groups(PQC_GROUP)
        else:
            context.set_ecdh_curve(PQC_GROUP)
    except (ValueError, ssl.SSLError) as error:
        raise NotSupported(
            f"key exchange {PQC_GROUP}",
            f"OpenSSL 3.5 (here: {ssl.OPENSSL_VERSION}), and a Python that can name its groups",
            hint="unset COMPLIANCE_POLICY",
        ) from error


@contextlib.contextmanager
def _readable(secret: bytes) -> Iterator[str]:
    """A path that can be opened and read, for as long as the block runs; never on a disk.

    The ssl module takes keys from files only.
    """
    with contextlib.ExitStack() as stack:
        fd = os.memfd_create("nodenet-certificate", os.MFD_CLOEXEC)
        stack.callback(os.close, fd)
        os.write(fd, secret)
        path = f"/proc/self/fd/{fd}"
        if not os.access(path, os.R_OK):  # no /proc here
            path = stack.enter_context(_tmpfs_file(secret))
        yield path


@contextlib.contextmanager
def _tmpfs_file(secret: bytes) -> Iterator[str]:
    directory = next((d for d in _TMPFS if os.access(d, os.W_OK)), None)
    if directory is None:
        raise TlsUnusable(f"a key cannot be loaded: neither /proc nor {' nor '.join(_TMPFS)}")
    fd, path = tempfile.mkstemp(prefix=".nodenet-", dir=directory)  # mode 0600
    try:
        with open(fd, "wb") as file:
            file.write(secret)
        yield path
    finally:
        os.unlink(path)
