"""The checks after the handshake: who the peer is, and what a failure is called."""

from __future__ import annotations

import ssl

import pytest
from cryptography import x509

from nodenet.identity import peer
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.errors import (
    AlpnMismatch,
    NoPeerIdentity,
    NotTls,
    SanNotAccepted,
    TlsError,
    TrustDomainMismatch,
)
from nodenet.identity.peer import (
    check_client,
    check_server,
    peer_certificate,
    peer_chain,
    peer_identity,
    tls_error,
)
from nodenet.identity.spiffe import Identity
from nodenet.identity.tls import TlsContexts
from tests.unit.identity.authority import Authority, Ends, shake

CART = Identity("cluster.local", "shop", "cart")
BANK = Identity("cluster.local", "bank", "vault")
FOREIGN = Identity("other.domain", "shop", "cart")


@pytest.fixture
def contexts() -> TlsContexts:
    return TlsContexts()


def _ends(contexts: TlsContexts, server: WorkloadCertificate, client: WorkloadCertificate) -> Ends:
    return shake(contexts.server(server), contexts.client(client))


def _uris(*texts: str) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(text) for text in texts]


def test_both_ends_know_each_other(authority: Authority, contexts: TlsContexts) -> None:
    ends = _ends(contexts, authority.certificate(BANK), authority.certificate(CART))
    assert peer_identity(ends.server) == check_client(ends.server, "cluster.local") == CART
    assert peer_identity(ends.client) == check_server(ends.client, (str(BANK),)) == BANK
    certificate = peer_certificate(ends.server)
    assert certificate is not None and certificate.uris == (str(CART),)


def test_a_client_of_another_trust_domain_is_rejected(
    authority: Authority, contexts: TlsContexts
) -> None:
    ends = _ends(contexts, authority.certificate(BANK), authority.certificate(FOREIGN))
    with pytest.raises(TrustDomainMismatch) as caught:
        check_client(ends.server, "cluster.local")
    assert str(caught.value) == (
        "tls error: peer spiffe://other.domain/ns/shop/sa/cart is not of the trust domain "
        "cluster.local"
    )
    assert check_client(ends.server, "other.domain") == FOREIGN


@pytest.mark.parametrize(
    "names",
    [
        [],
        [x509.DNSName("cart.shop")],
        _uris("https://cluster.local/ns/shop/sa/cart"),
        _uris("spiffe://cluster.local/vm/7"),
        # which of the two it is would be the client's choice
        _uris(str(CART), str(BANK)),
    ],
    ids=["no names", "a host name", "another scheme", "no workload", "two names"],
)
def test_a_client_without_one_spiffe_id_is_rejected(
    authority: Authority, contexts: TlsContexts, names: list[x509.GeneralName]
) -> None:
    ends = _ends(contexts, authority.certificate(BANK), authority.named(CART, names))
    assert peer_identity(ends.server) is None
    with pytest.raises(NoPeerIdentity):
        check_client(ends.server, "cluster.local")


def test_a_server_needs_one_name_in_the_list(authority: Authority, contexts: TlsContexts) -> None:
    server = authority.named(BANK, _uris(str(FOREIGN), str(BANK)))
    ends = _ends(contexts, server, authority.certificate(CART))
    assert check_server(ends.client, (str(CART), str(BANK))) == BANK
    with pytest.raises(SanNotAccepted) as caught:
        check_server(ends.client, (str(CART),))
    assert caught.value.found == (str(FOREIGN), str(BANK))
    assert caught.value.expected == (str(CART),)
    assert str(caught.value) == (f"tls error: server is {FOREIGN}, {BANK}, expected {CART}")


def test_entries_that_are_no_ids_count_for_nothing(
    authority: Authority, contexts: TlsContexts, caplog: pytest.LogCaptureFixture
) -> None:
    odd = "spiffe://cluster.local/gateway/east"
    server = authority.named(BANK, _uris(odd, str(BANK)))
    ends = _ends(contexts, server, authority.certificate(CART))
    assert check_server(ends.client, (odd, str(BANK))) == BANK
    assert check_server(ends.client, (odd, str(BANK))) == BANK
    assert sum(odd in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(SanNotAccepted):
        check_server(ends.client, (odd,))


def test_an_empty_list_always_fails(authority: Authority, contexts: TlsContexts) -> None:
    ends = _ends(contexts, authority.certificate(BANK), authority.certificate(CART))
    with pytest.raises(SanNotAccepted, match="expected none"):
        check_server(ends.client, ())


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
def test_a_peer_that_does_not_speak_http2_is_rejected(
    authority: Authority, contexts: TlsContexts, protocols: list[str]
) -> None:
    for odd in ("client", "server"):
        server = contexts.server(authority.certificate(BANK))
        client = contexts.client(authority.certificate(CART))
        (server if odd == "server" else client).set_alpn_protocols(protocols)
        ends = shake(server, client)
        with pytest.raises(AlpnMismatch) as caught:
            check_client(ends.server, "cluster.local")
        assert caught.value.selected is None
        with pytest.raises(AlpnMismatch, match="want h2"):
            check_server(ends.client, (str(BANK),))


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 64, b"SSH-2.0-x\r\n"]
)
def test_plain_bytes_are_no_tls(authority: Authority, contexts: TlsContexts, data: bytes) -> None:
    incoming = ssl.MemoryBIO()
    server = contexts.server(authority.certificate(BANK)).wrap_bio(
        incoming, ssl.MemoryBIO(), server_side=True
    )
    incoming.write(data)
    with pytest.raises(ssl.SSLError) as caught:
        server.do_handshake()
    assert isinstance(tls_error(caught.value), NotTls)


def test_a_peer_that_leaves_in_the_middle(authority: Authority, contexts: TlsContexts) -> None:
    incoming = ssl.MemoryBIO()
    server = contexts.server(authority.certificate(BANK)).wrap_bio(
        incoming, ssl.MemoryBIO(), server_side=True
    )
    incoming.write_eof()
    with pytest.raises(ssl.SSLError) as caught:
        server.do_handshake()
    error = tls_error(caught.value)
    assert isinstance(error, TlsError) and str(error).startswith("tls error: ")


def test_the_chain_is_the_verified_one(contexts: TlsContexts) -> None:
    above = Authority.with_intermediate()
    assert above.intermediate is not None
    client = above.certificate(CART)
    ends = _ends(contexts, above.certificate(BANK), client)
    assert [c.der for c in peer_chain(ends.server)] == [
        client.leaf.der,
        above.intermediate.certificate.der,
        above.root.certificate.der,
    ]


def test_a_python_that_does_not_tell_the_chain_gives_the_leaf(
    authority: Authority, contexts: TlsContexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = authority.certificate(CART)
    ends = _ends(contexts, authority.certificate(BANK), client)
    monkeypatch.setattr(peer, "_verified_chain", lambda connection: [])
    assert [c.der for c in peer_chain(ends.server)] == [client.leaf.der]


def test_certificates_are_parsed_once(authority: Authority, contexts: TlsContexts) -> None:
    server, client = authority.certificate(BANK), authority.certificate(CART)
    first, second = (peer_certificate(_ends(contexts, server, client).server) for _ in "12")
    assert first is second
