"""Handshakes of TLS on the poller: who is served, who is refused and reads why, and who waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from _socket import socket as RawSocket
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodenet.agents.konnectivity import tls_transport
from nodenet.agents.konnectivity.tls_transport import TlsTransport
from nodenet.tls.context import Context, Side
from nodenet.tls.engine import Engine
from nodenet.tls.errors import HandshakeFailed, PeerLeft, PeerUntrusted, RecordsBroken, WrongName
from tests.interop.certificates import BOTH, DAY, MINUTES, Authority, Certificates, self_signed
from tests.unit.agents.konnectivity.agent_scene import until
from tests.unit.agents.konnectivity.tls_scene import (
    MUCH,
    TLS12,
    TLS13,
    Link,
    Recorder,
    Run,
    TlsScene,
    digest,
    links,
    ours,
    two_links,
    versions,
)
from tests.unit.agents.konnectivity.transport_scene import echo, fail, over, take

# -- what is no handshake -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("junk", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "http request"),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", "https proxy request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "wrong version number"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "wrong version number"),
        (bytes(100), "wrong version number"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", ""),
        (b"\x15\x03\x03\x00\x02\x01\x00", ""),
    ],
)
def test_what_is_no_tls_is_not_served(
    run_tls_twice: Run, junk: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test(scene: TlsScene) -> None:
        scene.serve(lambda: Recorder(data=echo))
        sock = scene.dial()
        port = sock.getsockname()[1]
        await scene.loop.sock_sendall(sock, junk)
        alert = await take(sock)
        assert alert == b"" or alert[0] == 21
        (said,) = caplog.messages
        assert said.startswith(f"agents: TLS with 127.0.0.1:{port} came to nothing: tls: ")
        assert said.endswith(words) and not said.endswith((": ", "[]", "no reason given"))
        await scene.sleeps()
        sock.close()
        await until(lambda: len(scene.poller) == 1, "the listener is left")
        peer = scene.client()
        await peer.shake(b"ask")
        assert await peer.take(3) == b"ask"

    run_tls_twice(test)


def test_who_is_refused_and_stays_is_cut(
    run_tls_twice: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.1)

    async def test(scene: TlsScene) -> None:
        scene.serve(Recorder)
        sock = scene.dial()
        await scene.loop.sock_sendall(sock, b"GET / HTTP/1.1\r\n\r\n")
        assert await take(sock) == b"", "there is no alert for this"
        await until(lambda: len(scene.poller) == 1, "the listener is left")

    run_tls_twice(test)


def test_who_is_refused_and_does_not_take_the_alert_is_cut(
    run_tls_twice: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it says meanwhile is for nobody."""
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.2)

    async def test(scene: TlsScene) -> None:
        near, far = scene.pair()
        near.setblocking(False)
        for byte in b"\x16\x03\x01\x00\x05\x01\x00\x00\x01":
            # whatever comes makes some room
            await scene.loop.sock_sendall(far, bytes([byte]))
            with pytest.raises(BlockingIOError):
                while True:
                    near.send(MUCH)
        sock = RawSocket(near.family, near.type | socket.SOCK_NONBLOCK, 0, near.detach())
        failures: list[Exception] = []
        engine = Engine(ours(Side.SERVER, scene.certs))
        transport = TlsTransport(
            scene.loop, scene.poller, sock, engine, Recorder, failures.append, direct=scene.direct
        )
        transport.start()
        await scene.loop.sock_sendall(far, b"\x00")
        await until(lambda: bool(failures), "it is refused")
        began = scene.loop.time()
        assert transport.get_write_buffer_size() > 0, "the alert waits"
        await scene.loop.sock_sendall(far, b"more")
        await scene.sleeps()
        await until(lambda: not len(scene.poller), "it is cut")
        assert scene.loop.time() - began > 0.1
        assert caplog.messages == []

    run_tls_twice(test)


@pytest.mark.parametrize("how", ["ends", "resets", "ends after a byte", "resets halfway"])
def test_who_only_looks_whether_the_port_is_open_ends_without_a_word(
    run_tls_twice: Run, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "nodenet")

    async def test(scene: TlsScene) -> None:
        scene.serve(Recorder)
        peer = scene.client()
        if how == "ends after a byte":
            peer.sock.send(b"\x16")
        elif how == "resets halfway":
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.do_handshake()
            peer.sock.send(peer.hello())
            assert (await scene.loop.sock_recv(peer.sock, 10_000))[0] == 0x16
        if how.startswith("resets"):
            peer.reset()
        else:
            peer.sock.close()
        await until(lambda: bool(caplog.messages), "it is noticed")
        await until(lambda: len(scene.poller) == 1, "the listener is left")
        assert [record.levelno for record in caplog.records] == [logging.DEBUG]

    run_tls_twice(test)


def test_who_refuses_us_is_in_the_log(
    run_tls_twice: Run, certs: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def test(scene: TlsScene) -> None:
        scene.serve(Recorder)
        peer = scene.client(context=ssl.create_default_context(cafile=certs.foreign_ca))
        with pytest.raises(ssl.SSLCertVerificationError):
            await peer.shake()
        await until(lambda: bool(caplog.messages), "it is noticed")
        assert caplog.messages[0].endswith("came to nothing: tls: tlsv1 alert unknown ca")

    run_tls_twice(test)


@pytest.mark.parametrize("how", ["says nothing", "says little by little"])
def test_a_handshake_has_its_time(
    run_tls_twice: Run, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKE_SECONDS", 0.2)
    caplog.set_level(logging.DEBUG, "nodenet")

    async def test(scene: TlsScene) -> None:
        scene.serve(Recorder)
        sock = scene.dial()
        if how == "says nothing":
            await scene.sleeps()
        else:
            with contextlib.suppress(ConnectionError):
                for byte in b"\x16\x03\x01\x02\x00" + bytes(500):
                    await scene.loop.sock_sendall(sock, bytes([byte]))
                    await asyncio.sleep(0.005)
        with contextlib.suppress(ConnectionError):
            assert await take(sock) == b""
        assert "no end of the handshake within 0.2 s" in caplog.text
        await until(lambda: len(scene.poller) == 1, "the listener is left")

    run_tls_twice(test)


# -- handshakes -----------------------------------------------------------------------------------


@links
def test_a_handshake_may_come_in_little_pieces(run_tls_twice: Run, link: Link) -> None:
    async def test(scene: TlsScene) -> None:
        if link.ours is Side.SERVER:
            scene.serve(lambda: Recorder(data=echo))
            peer = scene.client(link)
            await peer.shake(pieces=7)
        else:
            near, peer = scene.server(link)
            shaking = asyncio.ensure_future(peer.shake(pieces=7))
            await scene.dialled(near, Recorder(data=echo))
            await shaking
        await peer.send(b"ask")
        assert await peer.take(3) == b"ask"

    run_tls_twice(test)


@two_links
def test_what_comes_with_the_end_of_the_handshake_is_read(run_tls_twice: Run, link: Link) -> None:
    data = MUCH[:100_000]

    async def test(scene: TlsScene) -> None:
        if link.ours is Side.SERVER:
            scene.serve(Recorder)
            await scene.client(link).shake(data)
        else:
            near, peer = scene.server(link)
            shaking = asyncio.ensure_future(peer.shake(data))
            await scene.dialled(near, Recorder())
            await shaking
        await until(lambda: bool(scene.protocols), "it is made")
        protocol = scene.protocols[0]
        await until(lambda: len(protocol.got) == len(data), "all is read")
        assert digest(protocol.got) == digest(data)

    run_tls_twice(test)


# -- who is refused -------------------------------------------------------------------------------


@versions
@pytest.mark.parametrize(
    ("client", "words", "alert"),
    [
        (
            "none",
            "peer did not return a certificate",
            ("HANDSHAKE_FAILURE", "CERTIFICATE_REQUIRED"),
        ),
        ("foreign", "unable to get local issuer certificate", "UNKNOWN_CA"),
        ("self-signed", "self-signed certificate", "UNKNOWN_CA"),
        ("expired", "certificate has expired", "CERTIFICATE_EXPIRED"),
        ("early", "certificate is not yet valid", "BAD_CERTIFICATE"),
        ("a server's", "unsuitable certificate purpose", "UNSUPPORTED_CERTIFICATE"),
    ],
)
def test_a_client_that_is_refused_reads_why(
    run_tls_twice: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    client: str,
    words: str,
    alert: str | tuple[str, str],
    version: ssl.TLSVersion,
) -> None:
    """Also when it has said much before: an alert, and not a reset."""
    caplog.set_level(logging.INFO)
    authority = Authority("ca")
    valid = {"expired": (-DAY, -MINUTES), "early": (MINUTES, DAY)}.get(client, (-MINUTES, DAY))
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] if client == "a server's" else BOTH
    issuer = Authority("foreign") if client == "foreign" else authority
    pair = issuer.issue(tmp_path, "x", valid=valid, purposes=purposes)
    if client == "self-signed":
        pair = self_signed(tmp_path, "x")

    async def test(scene: TlsScene) -> None:
        server = Context(Side.SERVER)
        server.load_cert_chain(scene.certs.server.cert, scene.certs.server.key)
        server.load_verify_locations(authority.write(tmp_path / "ca"))
        scene.serve(Recorder, server)
        context = ssl.create_default_context(cafile=scene.certs.ca)
        context.minimum_version = context.maximum_version = version
        if client != "none":
            context.load_cert_chain(pair.cert, pair.key)
        peer = scene.client(context=context)
        with pytest.raises(ssl.SSLError) as caught:
            await peer.shake(MUCH[:700_000])  # more than one read, and than the sockets hold
            await peer.take()
        expected = alert if isinstance(alert, str) else alert[version is TLS13]
        assert expected in str(caught.value.reason)
        await peer.ended()
        assert scene.protocols == [] and f"nothing: tls: {words}" in caplog.messages[0]
        peer.sock.close()
        await until(lambda: len(scene.poller) == 1, "the listener is left")

    run_tls_twice(test)


@pytest.mark.parametrize(
    ("server", "error", "words", "alert"),
    [
        ("nobody", WrongName, "the certificate is not for localhost", "BAD_CERTIFICATE"),
        ("another", WrongName, "the certificate is not for localhost", "BAD_CERTIFICATE"),
        ("foreign", PeerUntrusted, "unable to get local issuer certificate", "UNKNOWN_CA"),
        ("self-signed", PeerUntrusted, "self-signed certificate", "UNKNOWN_CA"),
        ("expired", PeerUntrusted, "certificate has expired", "CERTIFICATE_EXPIRED"),
        ("early", PeerUntrusted, "certificate is not yet valid", "BAD_CERTIFICATE"),
        ("a client's", PeerUntrusted, "unsuitable certificate purpose", "UNSUPPORTED_CERTIFICATE"),
    ],
)
def test_a_server_that_is_refused_reads_why(
    run_tls_twice: Run,
    tmp_path: Path,
    server: str,
    error: type[HandshakeFailed],
    words: str,
    alert: str,
) -> None:
    authority = Authority("ca")
    hosts = {"nobody": [], "another": ["nowhere", "127.0.0.1"]}.get(server, ["localhost"])
    valid = {"expired": (-DAY, -MINUTES), "early": (MINUTES, DAY)}.get(server, (-MINUTES, DAY))
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] if server == "a client's" else BOTH
    issuer = Authority("foreign") if server == "foreign" else authority
    # the common name is localhost in every case, and no name
    pair = issuer.issue(tmp_path, "localhost", *hosts, valid=valid, purposes=purposes)
    if server == "self-signed":
        pair = self_signed(tmp_path, "localhost", "localhost")

    async def test(scene: TlsScene) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        client = Context(Side.CLIENT)
        client.load_verify_locations(authority.write(tmp_path / "ca"))
        near, peer = scene.server(context=context)
        shaking = asyncio.ensure_future(peer.shake())
        with pytest.raises(error) as caught:
            await scene.dialled(near, Recorder(), client)
        assert type(caught.value) is error and caught.value.reason.startswith(words)
        with pytest.raises(ssl.SSLError) as told:
            await shaking
        assert alert in str(told.value.reason)
        peer.sock.close()
        await until(lambda: not len(scene.poller), "nothing is left")

    run_tls_twice(test)


@pytest.mark.parametrize(
    ("name", "right"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.0.0.2", False)],
)
def test_a_server_may_be_known_by_its_address(run_tls_twice: Run, name: str, right: bool) -> None:
    async def test(scene: TlsScene) -> None:
        near, peer = scene.server()
        shaking = asyncio.ensure_future(peer.shake())
        client = ours(Side.CLIENT, scene.certs)
        if right:
            protocol = await scene.dialled(near, Recorder(data=echo), client, name)
            await shaking
            await peer.send(b"ask")
            assert await peer.take(3) == b"ask" and protocol.got == b"ask"
            return
        with pytest.raises(WrongName) as caught:
            await scene.dialled(near, Recorder(), client, name)
        assert caught.value.name == name
        with pytest.raises(ssl.SSLError):
            await shaking
        peer.sock.close()

    run_tls_twice(test)


@versions
def test_a_client_of_ours_that_is_refused_hears_why(
    run_tls_twice: Run, version: ssl.TLSVersion
) -> None:
    """In TLS 1.3 after its handshake is done."""

    async def test(scene: TlsScene) -> None:
        near, peer = scene.server(Link(Side.CLIENT, version))
        shaking = asyncio.ensure_future(peer.shake())
        client = Context(Side.CLIENT)
        client.load_verify_locations(scene.certs.ca)
        error: Exception | None
        if version is TLS12:
            with pytest.raises(HandshakeFailed) as caught:
                await scene.dialled(near, Recorder(), client)
            error = caught.value
        else:
            protocol = await scene.dialled(near, Recorder(), client)
            error = await over(protocol)
            assert isinstance(error, RecordsBroken)
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            await shaking
        tls12 = version is TLS12  # where OpenSSL's words depend on its own
        words = "alert handshake failure" if tls12 else "tls: tlsv13 alert certificate required"
        assert str(error).endswith(words)
        peer.sock.close()

    run_tls_twice(test)


# -- who dials ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("ends", PeerLeft, "tls: the peer closed the connection"),
        ("resets", ConnectionResetError, "[Errno 104] Connection reset by peer"),
        ("says nothing", PeerLeft, "tls: no end of the handshake within 0.2 s"),
        ("speaks no TLS", HandshakeFailed, "tls: wrong version number"),
    ],
)
def test_a_server_that_shakes_no_hands(
    run_tls_twice: Run,
    how: str,
    error: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_transport, "HANDSHAKE_SECONDS", 0.2)

    async def test(scene: TlsScene) -> None:
        near, peer = scene.server()
        dialling = asyncio.ensure_future(scene.dialled(near, Recorder()))
        assert (await scene.loop.sock_recv(peer.sock, 10_000))[0] == 0x16
        if how == "ends":
            peer.sock.close()
        elif how == "resets":
            peer.reset()
        elif how == "speaks no TLS":
            peer.sock.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        else:
            await scene.sleeps()
        with pytest.raises(error) as caught:
            await dialling
        assert type(caught.value) is error and str(caught.value) == words
        peer.sock.close()
        await until(lambda: not len(scene.poller), "nothing is left")

    run_tls_twice(test)


def test_a_dial_may_be_cancelled_at_any_time(run_tls_twice: Run) -> None:
    async def test(scene: TlsScene) -> None:
        done = []
        for turns in range(1, 60):
            near, peer = scene.server()
            protocol = Recorder()
            dialling = asyncio.ensure_future(scene.dialled(near, protocol))
            shaking = asyncio.ensure_future(peer.shake())
            for _ in range(turns):
                await asyncio.sleep(0)
            dialling.cancel()
            await asyncio.wait([dialling])
            done.append(not dialling.cancelled())
            if done[-1]:
                assert dialling.result() is protocol and protocol.lost == []
                protocol.transport.abort()
            shaking.cancel()
            await asyncio.wait([shaking])
            with contextlib.suppress(ConnectionError):
                await peer.ended()
            assert not len(scene.poller), "nothing is left"
            peer.sock.close()
            assert hasattr(protocol, "transport") == len(protocol.lost)  # noqa: B015
        assert done[0] is False and done[-1] is True

    run_tls_twice(test)


@pytest.mark.parametrize("name", ["a b", "12345", "x" * 300, "münchen"])
def test_who_dials_by_a_name_that_is_nobodys_is_told_so(run_tls_twice: Run, name: str) -> None:
    async def test(scene: TlsScene) -> None:
        near, peer = scene.server()
        shaking = asyncio.ensure_future(peer.shake())
        async with asyncio.timeout(3):
            with pytest.raises(HandshakeFailed, match=name):
                await scene.dialled(near, Recorder(), name=name)
        shaking.cancel()
        await asyncio.wait([shaking])

    run_tls_twice(test)


@pytest.mark.parametrize("at", [1, 2])
def test_who_dials_hears_of_whatever_goes_wrong(
    run_tls_twice: Run, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug, at the first step of a handshake or at another, keeps nobody waiting."""
    steps: list[Callable[[Engine], bool]] = [Engine.shake] * (at - 1) + [fail]

    async def test(scene: TlsScene) -> None:
        monkeypatch.setattr(Engine, "shake", lambda engine: steps.pop(0)(engine))
        near, peer = scene.server()
        shaking = asyncio.ensure_future(peer.shake())
        async with asyncio.timeout(3):
            with pytest.raises((ValueError, ConnectionError)):
                await scene.dialled(near, Recorder())
        shaking.cancel()
        await asyncio.wait([shaking])
        await until(lambda: not len(scene.poller), "nothing is left")

    run_tls_twice(test)
