"""A CRL that lists a workload's certificate: new connections fail, live ones are cut."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from tests.root.agents.ztunnel.meshed import B4, Meshed
from tests.root.agents.ztunnel.proxied import ends_in_reset

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def world(
    capture: Capture, topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Meshed]:
    """Two pods in a mesh whose proxies look at a CRL."""
    monkeypatch.setenv("CRL_PATH", str(tmp_path / "crl.pem"))
    made = Meshed(capture, topology, tmp_path)
    try:
        made.start("--log-level=debug")
        yield made
    finally:
        made.stop()


def _revoke(world: Meshed, node: str, account: str) -> None:
    """Puts the certificate that a node's proxy got for an account on the list."""
    serial = int(world.proxies[node].wait_for(rf"certificate of \S+/{account}: serial (\d+)")[1])
    ca = world.directory / "ca"
    pem = b"".join(path.read_bytes() for path in sorted(ca.rglob("*")) if path.is_file())
    root = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    key = serialization.load_pem_private_key(
        pem[pem.index(b"-----BEGIN PRIVATE KEY") :], password=None
    )
    now = datetime.datetime.now(datetime.UTC)
    revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
    listed = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.subject)
        .last_update(now - datetime.timedelta(minutes=1))
        .next_update(now + datetime.timedelta(days=1))
        .add_revoked_certificate(revoked)
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]  # a P-256 key
    )
    (world.directory / "crl.pem").write_bytes(listed.public_bytes(serialization.Encoding.PEM))


def test_a_revoked_client(world: Meshed) -> None:
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        _revoke(world, "n1", "a")
        assert ends_in_reset(server)
        assert ends_in_reset(client)
    assert "peer certificate revoked by CRL" in world.access("n2", "connection complete")
    with world.listen(world.b) as listener:
        with world.connect(world.a, B4, listener.getsockname()[1]) as client:
            assert ends_in_reset(client)
    world.access("n2", "connection failed.*revoked by CRL")


def test_a_revoked_server(world: Meshed) -> None:
    with world.pair() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        _revoke(world, "n2", "b")
        assert ends_in_reset(client)
        assert ends_in_reset(server)
    assert "peer certificate revoked by CRL" in world.access("n1", "connection complete")
