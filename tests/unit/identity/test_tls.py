"""Contexts made from workload certificates: real handshakes, in memory."""

from __future__ import annotations

import gc
import os
import ssl
import time
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodenet.errors import NotSupported
from nodenet.identity import tls
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.chain import CertificateChain
from nodenet.identity.errors import PeerRefused, PeerUntrusted
from nodenet.identity.keys import PrivateKey
from nodenet.identity.peer import tls_error
from nodenet.identity.spiffe import Identity
from nodenet.identity.tls import Compliance, TlsContexts, TlsOptions, TlsUnusable
from nodenet.identity.x509 import Certificate
from tests.unit.identity.authority import Authority, HandshakeBroke, shake

CART = Identity("cluster.local", "shop", "cart")
BANK = Identity("cluster.local", "bank", "vault")


@pytest.fixture
def contexts() -> TlsContexts:
    return TlsContexts()


def _broken(
    contexts: TlsContexts, server: WorkloadCertificate, client: WorkloadCertificate
) -> HandshakeBroke:
    with pytest.raises(HandshakeBroke) as caught:
        shake(contexts.server(server), contexts.client(client))
    return caught.value


def test_two_workloads_of_a_root_talk(authority: Authority, contexts: TlsContexts) -> None:
    server, client = authority.certificate(BANK), authority.certificate(CART)
    ends = shake(contexts.server(server), contexts.client(client))
    for end in (ends.server, ends.client):
        assert end.version() == "TLSv1.3"
        assert end.selected_alpn_protocol() == "h2"
        assert end.compression() is None
    assert ends.talk(b"hello" * 1000) == b"hello" * 1000


def test_chains_through_an_intermediate(contexts: TlsContexts) -> None:
    above = Authority.with_intermediate()
    ends = shake(contexts.server(above.certificate(BANK)), contexts.client(above.certificate(CART)))
    assert ends.talk(b"x") == b"x"


def test_a_root_may_be_signed_by_another(contexts: TlsContexts) -> None:
    """What the CA calls a root is one, with rustls as here."""
    above = Authority.with_intermediate()
    assert above.intermediate is not None
    below = Authority(above.intermediate)
    ends = shake(contexts.server(below.certificate(BANK)), contexts.client(below.certificate(CART)))
    assert ends.talk(b"x") == b"x"


def test_a_root_may_be_rsa(contexts: TlsContexts) -> None:
    """As istiod's own is."""
    now, rsa_key = datetime.now(UTC), rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "cluster.local")])

    def signed(public: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, uri: str) -> Certificate:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]) if uri else name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=not uri, path_length=None), critical=True)
        )
        builder = builder.add_extension(names, critical=True) if uri else builder
        return Certificate.of(builder.sign(rsa_key, hashes.SHA256()))

    root = signed(rsa_key.public_key(), "")

    def workload(identity: Identity) -> WorkloadCertificate:
        key = PrivateKey.generate()
        chain = CertificateChain(leaf=signed(key.public(), str(identity)), roots=(root,))
        return WorkloadCertificate.from_chain(identity, key, chain, now=time.time())

    ends = shake(contexts.server(workload(BANK)), contexts.client(workload(CART)))
    assert ends.talk(b"x") == b"x"


def test_the_client_names_no_server(authority: Authority, contexts: TlsContexts) -> None:
    out = ssl.MemoryBIO()
    client = contexts.client(authority.certificate(CART)).wrap_bio(ssl.MemoryBIO(), out)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = _extensions(out.read())
    assert 0 not in hello  # server_name
    assert hello[16] == b"\x00\x03\x02h2"
    assert hello[43] == b"\x02\x03\x04"  # supported_versions: TLS 1.3 alone


def test_nothing_can_be_resumed(authority: Authority, contexts: TlsContexts) -> None:
    server = contexts.server(authority.certificate(BANK))
    client = contexts.client(authority.certificate(CART))
    ends = shake(server, client)
    ends.talk(b"x")  # tickets would have come with it
    assert ends.client.session is not None and not ends.client.session.has_ticket
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    again = client.wrap_bio(down, up, session=ends.client.session)
    other = server.wrap_bio(up, down, server_side=True)
    for end in (again, other, again, other):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
    assert other.getpeercert() and not other.session_reused and not again.session_reused


@pytest.mark.parametrize("stranger", ["client", "server"])
def test_another_root_is_not_trusted(
    authority: Authority, contexts: TlsContexts, stranger: str
) -> None:
    other = Authority()
    # the stranger trusts everybody, and still is not trusted
    other.trusted = (other.root.certificate, authority.root.certificate)
    server = (other if stranger == "server" else authority).certificate(BANK)
    client = (other if stranger == "client" else authority).certificate(CART)
    broken = _broken(contexts, server, client)
    assert broken.side == ("client" if stranger == "server" else "server")
    error = tls_error(broken.error)
    assert isinstance(error, PeerUntrusted)
    assert str(error).startswith("tls error: peer certificate: ")
    seen = tls_error(broken.others_error())
    assert isinstance(seen, PeerRefused)
    assert str(seen) == "tls error: refused by the peer: unknown ca"


@pytest.mark.parametrize("who", ["client", "server"])
@pytest.mark.parametrize(
    ("made", "reason", "code"),
    [(-7200.0, "certificate has expired", 10), (7200.0, "certificate is not yet valid", 9)],
)
def test_a_certificate_out_of_its_time_is_not_taken(
    authority: Authority, contexts: TlsContexts, who: str, made: float, reason: str, code: int
) -> None:
    wrong, now = authority.certificate(CART, ttl=600, now=time.time() + made), time.time()
    assert not wrong.not_before <= now < wrong.not_after
    right = authority.certificate(BANK)
    server, client = (wrong, right) if who == "server" else (right, wrong)
    broken = _broken(contexts, server, client)
    error = tls_error(broken.error)
    assert str(error) == f"tls error: peer certificate: {reason}"
    assert isinstance(error, PeerUntrusted) and error.verify_code == code


def test_a_client_without_certificate_is_refused(
    authority: Authority, contexts: TlsContexts
) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=authority.root.certificate.pem)
    with pytest.raises(HandshakeBroke) as caught:
        shake(contexts.server(authority.certificate(BANK)), client)
    assert caught.value.side == "server"
    assert str(tls_error(caught.value.error)) == ("tls error: peer did not return a certificate")
    # in TLS 1.3 the client thinks it is done before the server has seen its certificate
    assert str(tls_error(caught.value.others_error())) == (
        "tls error: refused by the peer: certificate required"
    )


def test_tls_1_2_is_refused(authority: Authority, contexts: TlsContexts) -> None:
    server, client = authority.certificate(BANK), authority.certificate(CART)
    old = TlsContexts(TlsOptions(tls12=True)).client(client)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(HandshakeBroke) as caught:
        shake(contexts.server(server), old)
    assert str(tls_error(caught.value.error)) == "tls error: unsupported protocol"


def test_tls_1_2_can_be_allowed(authority: Authority) -> None:
    contexts = TlsContexts(TlsOptions(tls12=True))
    server, client = authority.certificate(BANK), authority.certificate(CART)
    assert shake(contexts.server(server), contexts.client(client)).server.version() == "TLSv1.3"
    old = contexts.client(authority.certificate(CART))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    ends = shake(contexts.server(server), old)
    assert ends.server.version() == "TLSv1.2"
    cipher = ends.server.cipher()
    assert cipher is not None and cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
    assert ends.talk(b"x") == b"x"


def test_a_renewed_certificate_leaves_old_connections_alone(
    authority: Authority, contexts: TlsContexts
) -> None:
    client = authority.certificate(CART)
    old, new = authority.certificate(BANK), authority.certificate(BANK)
    before = shake(contexts.server(old), contexts.client(client))
    after = shake(contexts.server(new), contexts.client(client))
    for ends, certificate in ((before, old), (after, new)):
        assert ends.client.getpeercert(True) == certificate.leaf.der
        assert ends.talk(b"still here") == b"still here"


def test_a_rotated_root_is_trusted_beside_the_old_one(contexts: TlsContexts) -> None:
    first, second = Authority(), Authority()
    first.trusted = second.trusted = (first.root.certificate, second.root.certificate)
    for server, client in ((first, second), (second, first)):
        ends = shake(
            contexts.server(server.certificate(BANK)), contexts.client(client.certificate(CART))
        )
        assert ends.talk(b"x") == b"x"


def test_a_context_is_made_once_and_goes_with_its_certificate(
    authority: Authority, contexts: TlsContexts
) -> None:
    certificate = authority.certificate(CART)
    server, client = contexts.server(certificate), contexts.client(certificate)
    assert contexts.server(certificate) is server and contexts.client(certificate) is client
    assert contexts.server(authority.certificate(CART)) is not server
    gone = weakref.ref(server)
    del server, client, certificate
    gc.collect()
    assert gone() is None


def test_roots_are_those_of_the_certificate_alone(
    authority: Authority, contexts: TlsContexts
) -> None:
    context = contexts.client(authority.certificate(CART))
    assert context.get_ca_certs(binary_form=True) == [authority.root.certificate.der]


def _open_files() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    }


def test_a_key_touches_no_disk(
    authority: Authority, contexts: TlsContexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(context: ssl.SSLContext, path: str) -> None:
        loaded.append(os.readlink(path))
        load(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    contexts.server(authority.certificate(CART))
    assert len(loaded) == 1 and loaded[0].startswith("/memfd:")
    assert not any("memfd:nodenet-certificate" in name for name in _open_files())


def test_without_proc_the_key_is_a_file_on_tmpfs_for_a_moment(
    authority: Authority,
    contexts: TlsContexts,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tls, "_TMPFS", (str(tmp_path),))
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).startswith("/proc") and real(path, mode)
    )
    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(context: ssl.SSLContext, path: str) -> None:
        assert Path(path).parent == tmp_path
        modes.append(os.stat(path).st_mode & 0o777)
        load(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    server = contexts.server(authority.certificate(BANK))
    client = contexts.client(authority.certificate(CART))
    assert modes == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == []
    assert shake(server, client).talk(b"x") == b"x"


def test_what_openssl_does_not_take_is_a_typed_error_without_the_key(
    authority: Authority, contexts: TlsContexts
) -> None:
    one, other = authority.certificate(CART), authority.certificate(CART)
    mixed = WorkloadCertificate(identity=CART, key=other.key, leaf=one.leaf, roots=one.roots)
    with pytest.raises(TlsUnusable, match="KEY_VALUES_MISMATCH") as caught:
        contexts.server(mixed)
    secret = other.key.pem().decode().splitlines()[1]
    for text in (str(caught.value), repr(caught.value), repr(mixed), repr(caught.value.__cause__)):
        assert secret[:20] not in text


def test_post_quantum_policy_is_kept_or_refused(authority: Authority) -> None:
    """Where OpenSSL has the group it is the only one offered; elsewhere nothing is made."""
    options = TlsOptions(compliance=Compliance.PQC)
    if ssl.OPENSSL_VERSION_INFO < (3, 5):
        with pytest.raises(NotSupported, match="X25519MLKEM768") as caught:
            TlsContexts(options)
        assert caught.value.exit_code == 3
        return
    out = ssl.MemoryBIO()
    context = TlsContexts(options).client(authority.certificate(CART))
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    assert _extensions(out.read())[10] == b"\x00\x02\x11\xec"


def _extensions(hello: bytes) -> dict[int, bytes]:
    """Extensions of a ClientHello record (RFC 8446 section 4.1.2), by number."""
    at = 5 + 4 + 2 + 32  # record, handshake, version, random
    at += 1 + hello[at]  # session id
    at += 2 + int.from_bytes(hello[at : at + 2], "big")  # cipher suites
    at += 1 + hello[at]  # compression
    end = at + 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 2
    found = {}
    while at < end:
        kind, size = (int.from_bytes(hello[i : i + 2], "big") for i in (at, at + 2))
        found[kind] = hello[at + 4 : at + 4 + size]
        at += 4 + size
    return found
