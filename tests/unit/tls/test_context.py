"""What contexts offer, show and believe. The other end is the standard library's."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodenet.tls.context import Context, Side, untimely
from nodenet.tls.engine import Engine
from nodenet.tls.errors import (
    CredentialsUnusable,
    HandshakeFailed,
    PeerUntrusted,
    WrongName,
    alert_in,
)
from tests.interop.certificates import (
    BOTH,
    DAY,
    MINUTES,
    Authority,
    Certificates,
    Pair,
    self_signed,
)
from tests.unit.tls.wire import (
    TLS12,
    TLS13,
    Ours,
    Theirs,
    connect,
    our_client,
    our_server,
    outcome,
    their_client,
    their_server,
)

DNS, URI = x509.DNSName, x509.UniformResourceIdentifier


def asked(
    folder: Path, name: str, *hosts: str, names: list[x509.GeneralName] | None = None
) -> tuple[Exception | None, Exception | None]:
    """What comes of asking for a name at a server whose certificate has others."""
    authority = Authority("ca")
    # a common name that every client here asks for, and that is no name
    pair = authority.issue(folder, "localhost", *hosts, names=names or [])
    client = our_client(authority.write(folder / "ca"))
    return outcome(Ours(Engine(client, name)), Theirs(their_server(pair)))


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost", "localhost"),
        ("localhost", "LOCALHOST"),
        ("my_host.internal", "my_host.internal"),
        ("a.example.com", "*.example.com"),
        ("A.EXAMPLE.com", "*.example.com"),
        ("xn--mnchen-3ya.example.com", "xn--mnchen-3ya.example.com"),
        ("münchen.example.com", "xn--mnchen-3ya.example.com"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fd00::0001", "fd00::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("localhost.", "localhost"),
        ("a.example.com.", "*.example.com"),
    ],
)
def test_a_server_is_known_by_each_name_of_its_certificate(
    tmp_path: Path, name: str, host: str
) -> None:
    assert asked(tmp_path, name, "nowhere", host, "10.1.2.3") == (None, None)


@pytest.mark.parametrize(
    ("name", "hosts"),
    [
        ("localhost", []),  # the common name alone
        ("localhost", ["127.0.0.1"]),
        ("localhost", ["localhost.example.com", "local", "localhostx"]),
        ("127.0.0.1", ["localhost"]),
        ("127.0.0.1", ["127.0.0.2", "::1", "::ffff:127.0.0.1"]),
        ("::1", ["127.0.0.1", "::2"]),
        ("example.com", ["*.example.com"]),
        ("a.b.example.com", ["*.example.com"]),
        ("a.example.com", ["*.com", "*.*.com", "*.b.example.com", "a.*.com"]),
        ("foo.example.com", ["f*.example.com", "*o.example.com", "f*o.example.com"]),
        ("localhost", ["*"]),
        ("a.local", ["*"]),
    ],
)
def test_a_server_of_another_name_is_refused(tmp_path: Path, name: str, hosts: list[str]) -> None:
    error, _ = asked(tmp_path, name, *hosts)
    assert isinstance(error, WrongName) and error.name == name
    assert str(error) == f"tls: the certificate is not for {name}"


def test_an_address_that_is_written_as_a_name_is_none(tmp_path: Path) -> None:
    error, _ = asked(tmp_path, "127.0.0.1", names=[DNS("127.0.0.1")])
    assert isinstance(error, WrongName)


@pytest.mark.parametrize(
    "other",
    [
        DNS("10.0.0.1"),
        DNS("123"),
        DNS("*"),
        DNS("*.local"),
        DNS("a.*.example.com"),
        DNS("f*.example.com"),
        DNS("localhost."),
        URI("spiffe://cluster.local/ns/kube-system/sa/konnectivity"),
        URI("https://somewhere:8443/"),
        URI("urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
        x509.RFC822Name("somebody@example.com"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
        x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
        x509.OtherName(x509.ObjectIdentifier("1.3.6.1.5.5.7.8.7"), b"\x16\x04what"),
    ],
    ids=str,
)
def test_a_name_that_is_nobodys_takes_nothing_from_the_others(
    tmp_path: Path, other: x509.GeneralName
) -> None:
    """Certificates have such, and `ssl` and Go serve them."""
    assert asked(tmp_path, "localhost", names=[other, DNS("localhost")]) == (None, None)
    error, _ = asked(tmp_path, "nowhere", names=[other, DNS("localhost")])
    assert isinstance(error, WrongName)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "*",
        ".example.com",
        "*.example.com",
        "a..",
        "a b",
        "12345",
        "ho/st",
        "127.0.0.1 ",
    ],
)
def test_what_can_be_no_servers_name_is_nobodys(tmp_path: Path, name: str) -> None:
    with pytest.raises(HandshakeFailed):  # when it is made, or when it has seen the certificate
        error, _ = asked(tmp_path, name, "localhost", "127.0.0.1", "a.example.com")
        raise error or AssertionError("it is believed")


@pytest.mark.parametrize(
    ("name", "heard"),
    [("localhost", "localhost"), ("localhost.", "localhost"), ("127.0.0.1", None), ("::1", None)],
)
def test_a_server_hears_for_whom_it_is_taken(
    certs: Certificates, name: str, heard: str | None
) -> None:
    """RFC 6066 section 3: a name, and not an address."""
    names: list[str | None] = []
    server = their_server(certs.server)
    server.sni_callback = lambda tls, name, context: names.append(name)
    connect(Ours(Engine(our_client(certs.ca), name)), Theirs(server))
    assert names == [heard]


# -- trust ----------------------------------------------------------------------------------------


def issued(kind: str, authority: Authority, folder: Path) -> Pair:
    """A certificate for localhost that there is something wrong with."""
    if kind == "self-signed":
        return self_signed(folder, "x", "localhost")
    valid = {"expired": (-DAY, -MINUTES), "early": (MINUTES, DAY)}.get(kind, (-MINUTES, DAY))
    purpose = {
        "a client's": [ExtendedKeyUsageOID.CLIENT_AUTH],
        "a server's": [ExtendedKeyUsageOID.SERVER_AUTH],
        "a signer's": [ExtendedKeyUsageOID.CODE_SIGNING],
    }.get(kind, BOTH)
    issuer = Authority("foreign") if kind == "foreign" else authority
    return issuer.issue(folder, "x", "localhost", valid=valid, purposes=purpose)


def moment(kind: str, path: Path) -> str:
    """What is said of a certificate's time: its end, or its beginning."""
    found = x509.load_pem_x509_certificate(path.read_bytes())
    match kind:
        case "expired":
            return f" ({found.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ})"
        case "early":
            return f" ({found.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ})"
    return ""


WRONG = [
    ("foreign", 20, "unable to get local issuer certificate"),
    ("self-signed", 18, "self-signed certificate"),
    ("expired", 10, "certificate has expired"),
    ("early", 9, "certificate is not yet valid"),
    ("a signer's", 26, "unsuitable certificate purpose"),
]


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize(
    ("kind", "number", "words"), [*WRONG, ("a client's", 26, "unsuitable certificate purpose")]
)
def test_a_server_that_is_not_to_be_believed(
    tmp_path: Path, kind: str, number: int, words: str, version: ssl.TLSVersion
) -> None:
    authority = Authority("ca")
    server = their_server(issued(kind, authority, tmp_path))
    server.maximum_version = version
    client = our_client(authority.write(tmp_path / "ca"))
    error, told = outcome(Ours(Engine(client, "localhost")), Theirs(server))
    assert type(error) is PeerUntrusted and error.number == number
    assert error.reason == words + moment(kind, tmp_path / "x.crt") and error.depth == 0
    assert str(error) == f"tls: {error.reason}"
    assert "ALERT" in str(told)


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize(
    ("kind", "number", "words"), [*WRONG, ("a server's", 26, "unsuitable certificate purpose")]
)
def test_a_client_that_is_not_to_be_believed(
    certs: Certificates,
    tmp_path: Path,
    kind: str,
    number: int,
    words: str,
    version: ssl.TLSVersion,
) -> None:
    authority = Authority("ca")
    client = their_client(certs.ca, issued(kind, authority, tmp_path))
    client.maximum_version = version
    server = our_server(certs.server, authority.write(tmp_path / "ca"))
    told, error = outcome(Theirs(client, "localhost"), Ours(Engine(server)))
    assert type(error) is PeerUntrusted and error.number == number
    assert error.reason == words + moment(kind, tmp_path / "x.crt")
    assert "ALERT" in str(told)


@pytest.mark.parametrize(
    ("valid", "words"),
    [
        ((-DAY, -MINUTES), "CA's certificate has expired"),
        ((MINUTES, DAY), "CA's certificate is not yet valid"),
    ],
)
def test_a_ca_that_is_not_to_be_believed_now(
    tmp_path: Path, valid: tuple[datetime.timedelta, datetime.timedelta], words: str
) -> None:
    authority = Authority("ca", valid=valid)
    server = their_server(authority.issue(tmp_path, "x", "localhost"))
    client = our_client(authority.write(tmp_path / "ca"))
    error, _ = outcome(Ours(Engine(client, "localhost")), Theirs(server))
    assert type(error) is PeerUntrusted and error.depth == 1
    kind = "expired" if "expired" in words else "early"
    assert error.reason == words + moment(kind, tmp_path / "ca")


@pytest.mark.parametrize("kind", ["expired", "early", "good"])
def test_a_certificate_that_nobody_takes_now(tmp_path: Path, kind: str) -> None:
    authority = Authority("ca")
    path = issued(kind, authority, tmp_path).cert
    words = {"expired": "certificate has expired", "early": "certificate is not yet valid"}
    expected = None if kind == "good" else words[kind] + moment(kind, path)
    # what signed it may come behind it
    pem = path.read_bytes() + authority.write(tmp_path / "ca").read_bytes()
    now = datetime.datetime.now(datetime.UTC)
    assert untimely(pem, now) == expected
    assert untimely(pem, now.astimezone(datetime.timezone(3 * MINUTES))) == expected
    with pytest.raises(CredentialsUnusable):
        untimely(b"rubbish", now)


def test_a_client_without_a_certificate(certs: Certificates) -> None:
    """It is served by who knows no authority, and not by who does."""
    client = their_client(certs.ca)
    connect(Theirs(client, "localhost"), Ours(Engine(our_server(certs.server))))
    server = our_server(certs.server, certs.ca)
    told, error = outcome(Theirs(client, "localhost"), Ours(Engine(server)))
    assert type(error) is HandshakeFailed
    assert error.reason == "peer did not return a certificate"
    assert "CERTIFICATE_REQUIRED" in str(told)


def test_a_clients_certificate_needs_no_name(certs: Certificates) -> None:
    client = Theirs(their_client(certs.ca, certs.client), "localhost")
    connect(client, Ours(Engine(our_server(certs.server, certs.ca))))


def test_several_authorities_are_believed(certs: Certificates, tmp_path: Path) -> None:
    both = tmp_path / "both"
    both.write_bytes(certs.foreign_ca.read_bytes() + certs.ca.read_bytes())
    server = our_server(certs.server, both)
    for pair in (certs.client, certs.foreign_client):
        connect(Theirs(their_client(certs.ca, pair), "localhost"), Ours(Engine(server)))


@pytest.mark.parametrize("believed", ["root", "intermediate", "the certificate itself"])
def test_whatever_is_in_the_file_of_authorities_is_believed(tmp_path: Path, believed: str) -> None:
    """As by Go: who has a CA that another one signed gives that CA, and not the other one."""
    root = Authority("root")
    middle = Authority("middle", issuer=root)
    pair = middle.issue(tmp_path, "localhost", "localhost")
    leaf = pair.cert.read_bytes()
    pair.cert.write_bytes(leaf + middle.write(tmp_path / "middle").read_bytes())
    match believed:
        case "root":
            ca = root.write(tmp_path / "ca")
        case "intermediate":
            ca = middle.write(tmp_path / "ca")
        case _:
            ca = tmp_path / "ca"
            ca.write_bytes(leaf)
    connect(Ours(Engine(our_client(ca), "localhost")), Theirs(their_server(pair)))
    theirs = their_client(root.write(tmp_path / "root"), pair)
    connect(Theirs(theirs, "localhost"), Ours(Engine(our_server(pair, ca))))
    stranger = Authority("other").issue(tmp_path, "stranger", "localhost")
    error, _ = outcome(Ours(Engine(our_client(ca), "localhost")), Theirs(their_server(stranger)))
    assert type(error) is PeerUntrusted


def test_a_client_believes_nobody_by_itself(certs: Certificates) -> None:
    """Least of all whom the system believes."""
    client = Ours(Engine(Context(Side.CLIENT), "localhost"))
    error, _ = outcome(client, Theirs(their_server(certs.server)))
    assert type(error) is PeerUntrusted


def test_one_refusal_is_no_matter_of_the_contexts_other_connections(certs: Certificates) -> None:
    client = our_client(certs.ca)
    server = their_server(certs.server)
    right, wrong = (Engine(client, name) for name in ("localhost", "nobody"))
    behind = Engine(client, "localhost")
    peers = [Theirs(server) for _ in range(3)]
    assert not right.shake(), "it has begun when the other fails"
    error, _ = outcome(Ours(wrong), peers[0])
    assert isinstance(error, WrongName)
    connect(Ours(right), peers[1])
    connect(Ours(behind), peers[2])


@pytest.mark.parametrize(
    ("text", "alert"),
    [
        ("tls: tlsv13 alert certificate required", "certificate required"),
        ("connection lost: tls: tlsv1 alert unknown ca", "unknown ca"),
        ("ssl/tls alert bad certificate", "bad certificate"),
        ("sslv3 alert certificate expired", "certificate expired"),
        ("tls alert certificate revoked", "certificate revoked"),
        ("tls: too many warn alerts", None),
        ("tls: unable to get local issuer certificate", None),
        ("", None),
    ],
)
def test_the_alert_of_a_peer_is_found_in_what_openssl_says(text: str, alert: str | None) -> None:
    assert alert_in(text) == alert


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize(
    ("kind", "alert"),
    [
        ("expired", "certificate expired"),
        ("foreign", "unknown ca"),
        ("early", "bad certificate"),
        ("a server's", "unsupported certificate"),
    ],
)
def test_a_client_that_is_refused_hears_the_alert(
    certs: Certificates, tmp_path: Path, kind: str, alert: str, version: ssl.TLSVersion
) -> None:
    authority = Authority("ca")
    server = their_server(certs.server, authority.write(tmp_path / "ca"))
    server.maximum_version = version
    client = our_client(certs.ca, issued(kind, authority, tmp_path))
    error, _ = outcome(Ours(Engine(client, "localhost")), Theirs(server))
    assert alert_in(str(error)) == alert


# -- versions, ciphers, ALPN ----------------------------------------------------------------------


@pytest.mark.parametrize("ours", Side)
@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize("least", [TLS12, TLS13])
def test_the_least_version_is_kept(
    certs: Certificates, least: ssl.TLSVersion, version: ssl.TLSVersion, ours: Side
) -> None:
    if ours is Side.SERVER:
        peer = their_client(certs.ca)
        peer.minimum_version = peer.maximum_version = version
        engine = Engine(our_server(certs.server, least=least))
        _, error = outcome(Theirs(peer, "localhost"), Ours(engine))
    else:
        peer = their_server(certs.server)
        peer.minimum_version = peer.maximum_version = version
        engine = Engine(our_client(certs.ca, least=least), "localhost")
        error, _ = outcome(Ours(engine), Theirs(peer))
    if version < least:
        assert type(error) is HandshakeFailed
        assert error.reason in ("unsupported protocol", "tlsv1 alert protocol version")
    else:
        assert error is None and engine.version == version.name.replace("_", ".")


@pytest.mark.parametrize(
    ("ciphers", "found"),
    [
        ([], "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (["ECDHE-ECDSA-AES128-GCM-SHA256"], "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"], None),
        (["ECDHE-ECDSA-AES256-GCM-SHA384"], ""),
    ],
)
def test_ciphers_of_tls_1_2(certs: Certificates, ciphers: list[str], found: str | None) -> None:
    """The server's order decides; a client with the first alone gets nothing of the second."""
    client = their_client(certs.ca)
    client.maximum_version = TLS12
    names = "ECDHE-ECDSA-AES128-GCM-SHA256"
    client.set_ciphers(names if found is not None else f"{names}:ECDHE-ECDSA-AES256-GCM-SHA384")
    engine = Engine(our_server(certs.server, ciphers=ciphers))
    told, error = outcome(Theirs(client, "localhost"), Ours(engine))
    if found == "":
        assert type(error) is HandshakeFailed and error.reason == "no shared cipher"
        assert "HANDSHAKE_FAILURE" in str(told)
    else:
        assert error is None and engine.cipher == (found or "ECDHE-ECDSA-AES256-GCM-SHA384")


@pytest.mark.parametrize("ciphers", [["NONE-OF-THEM"], ["TLS_AES_128_GCM_SHA256"], [""]])
def test_ciphers_that_are_none(ciphers: list[str]) -> None:
    with pytest.raises(CredentialsUnusable, match="^tls: no cipher match$"):
        Context(Side.SERVER, ciphers=ciphers)


@pytest.mark.parametrize(
    ("server", "client", "chosen"),
    [
        (["h2", "http/1.1"], ["http/1.1", "h2"], "h2"),  # our order
        (["h2", "http/1.1"], ["http/1.1"], "http/1.1"),
        (["h2"], ["spdy/3"], ""),  # as Go does with what it does not know
        (["h2"], [], ""),
        ([], ["h2"], ""),
    ],
)
def test_a_server_chooses_a_protocol_or_serves_without_one(
    certs: Certificates, server: list[str], client: list[str], chosen: str
) -> None:
    engine = Engine(our_server(certs.server, alpn=server))
    context = their_client(certs.ca)
    if client:
        context.set_alpn_protocols(client)
    peer = Theirs(context, "localhost")
    connect(peer, Ours(engine))
    assert engine.alpn == chosen and (peer.tls.selected_alpn_protocol() or "") == chosen


@pytest.mark.parametrize(
    ("client", "server", "chosen"),
    [(["x", "h2"], ["h2"], "h2"), (["h2"], ["x"], ""), ([], ["h2"], "")],
)
def test_a_client_takes_what_it_is_given(
    certs: Certificates, client: list[str], server: list[str], chosen: str
) -> None:
    context = their_server(certs.server)
    context.set_alpn_protocols(server)
    engine = Engine(our_client(certs.ca, alpn=client), "localhost")
    connect(Ours(engine), Theirs(context))
    assert engine.alpn == chosen


# -- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("version", [TLS12, TLS13])
def test_who_asks_to_resume_a_session_gets_a_whole_handshake(
    certs: Certificates, version: ssl.TLSVersion, mutual: bool
) -> None:
    """So that each connection is judged by the certificate it shows."""
    context = their_client(certs.ca, certs.client)
    context.minimum_version = context.maximum_version = version
    server = our_server(certs.server, certs.ca if mutual else None)
    session: ssl.SSLSession | None = None
    kept = []  # who is freed before it has said goodbye takes its session along
    for _ in range(3):
        peer, engine = Theirs(context, "localhost", session), Ours(Engine(server))
        connect(peer, engine)
        kept.append(engine)
        assert peer.tls.session_reused is False
        engine.write(b"hello")
        peer.feed(engine.take())
        assert peer.read() == b"hello", "and tickets with it"
        session = peer.tls.session
        assert session is not None


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cert", "key"),
    [
        ("server", "client"),
        ("server", "other"),
        ("rubbish", "server"),
        ("broken", "server"),
        ("server", "rubbish"),
        ("nowhere", "server"),
        ("server", "nowhere"),
    ],
)
def test_a_pair_that_cannot_be_used(
    certs: Certificates, tmp_path: Path, cert: str, key: str
) -> None:
    files = made_files(certs, tmp_path)
    with pytest.raises((CredentialsUnusable, OSError)) as caught:
        Context(Side.SERVER).load_cert_chain(files(cert, "cert"), files(key, "key"))
    says_what(caught.value, tmp_path)


@pytest.mark.parametrize("name", ["rubbish", "broken", "nowhere"])
def test_authorities_that_cannot_be_used(certs: Certificates, tmp_path: Path, name: str) -> None:
    path = made_files(certs, tmp_path)(name, "cert")
    for side in Side:
        with pytest.raises((CredentialsUnusable, OSError)) as caught:
            Context(side).load_verify_locations(path)
        says_what(caught.value, tmp_path)


def made_files(certs: Certificates, folder: Path) -> Callable[[str, str], Path]:
    """Paths of good files and of bad ones."""
    (folder / "rubbish").write_text("no PEM")
    block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (folder / "broken").write_text(block)
    other = Ed25519PrivateKey.generate()  # of another kind than the certificate's
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = other.private_bytes(pem, pkcs8, serialization.NoEncryption())
    (folder / "other").write_bytes(secret)
    return lambda name, part: getattr(getattr(certs, name, None), part, folder / name)


def says_what(error: BaseException, folder: Path) -> None:
    """Not only which part of OpenSSL it was; which file, the caller knows."""
    if isinstance(error, CredentialsUnusable):
        assert error.reason == error.reason.lower() and not error.reason.endswith(" lib")
        assert str(folder) not in str(error)


def test_the_whole_chain_of_a_file_is_shown(certs: Certificates, tmp_path: Path) -> None:
    together = tmp_path / "together"
    together.write_bytes(certs.server.cert.read_bytes() + certs.ca.read_bytes())
    server = Context(Side.SERVER)
    server.load_cert_chain(together, certs.server.key)
    short, long = Engine(our_server(certs.server)), Engine(server)
    sizes = []
    for engine in (short, long):
        peer = Theirs(their_client(certs.ca), "localhost")
        assert not peer.shake()
        engine.feed(memoryview(peer.take()))
        assert not engine.shake()
        sizes.append(len(engine.take()))
    assert sizes[1] > sizes[0] + 300
