"""One stream to a server: what the agent says, how it dials, how it ends. Real sockets and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import load_pem_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodenet.agents.konnectivity import agent_remote, agent_set, agent_stream
from nodenet.agents.konnectivity.agent_remote import Remote, Sockets
from nodenet.agents.konnectivity.agent_set import ClientSet
from nodenet.agents.konnectivity.agent_stream import ConnectFailed, ServerStream
from nodenet.agents.konnectivity.tls_opening import connect_tls, serve_tls
from nodenet.agents.ztunnel.poller import Poller
from nodenet.konnectivity.agent_tunnel import Counts, Tunnel
from nodenet.konnectivity.extensions import NONE, OURS, Extensions
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    Drain,
    HalfClose,
    Window,
)
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.connection import Role
from nodenet.tls.context import Context, Side
from tests.interop.certificates import BOTH, DAY, MINUTES, Authority, Certificates
from tests.interop.remotes import black_hole
from tests.unit.agents.konnectivity.agent_scene import (
    FakeServer,
    Stream,
    agent,
    config_for,
    run,
    said,
    token_file,
    told,
    until,
)


@contextlib.asynccontextmanager
async def connected(
    certs: Certificates, *flags: str, peer: Extensions = OURS
) -> AsyncIterator[tuple[Stream, ClientSet]]:
    """A server's view of an agent, and the agent."""
    server = FakeServer("s1", peer=peer)
    await server.start(certs)
    try:
        async with agent(config_for(certs, server.port, *flags)) as clients:
            await until(lambda: clients.ready == 1, "the agent is connected")
            yield server.streams[0], clients
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[tuple[str, asyncio.Queue[Peer]]]:
    """A remote's address and the connections that came."""
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    made: list[Peer] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(Peer(reader, writer))
        peers.put_nowait(made[-1])

    server = await asyncio.start_server(accept, host, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), peers
    finally:
        server.close()
        for peer in made:
            peer.cut()
        await asyncio.sleep(0.01)  # for the transports to close


class Peer:
    """One connection at a remote."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def cut(self) -> None:
        self.writer.transport.abort()


# -- who does not believe whom --------------------------------------------------------------------

TIMES = {"expired": (-DAY, -MINUTES), "early": (MINUTES, DAY)}


def shown(path: Path, kind: str) -> str:
    """The end of a certificate, or its beginning."""
    found = load_pem_x509_certificate(path.read_bytes())
    moment = found.not_valid_after_utc if kind == "expired" else found.not_valid_before_utc
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "expired",
            "x509 certificate has expired ({}); "
            "the server must renew its --cluster-cert, or a clock is wrong",
        ),
        (
            "early",
            "x509 certificate is not yet valid ({}); "
            "a clock is wrong, or the server must replace its --cluster-cert",
        ),
        (
            "a client's",
            "x509 unsuitable certificate purpose; "
            "the server's --cluster-cert is not one for servers (no serverAuth)",
        ),
        ("foreign", "x509 unable to get local issuer certificate; check --ca-cert"),
        (
            "expired CA",
            "x509 CA's certificate has expired ({}); "
            "renew the servers' CA and --ca-cert, or a clock is wrong",
        ),
    ],
)
def test_what_is_wrong_with_a_servers_certificate(
    certs: Certificates, tmp_path: Path, kind: str, words: str
) -> None:
    known = Authority("ca", valid=TIMES["expired"]) if kind == "expired CA" else Authority("ca")
    issuer = Authority("foreign") if kind == "foreign" else known
    pair = issuer.issue(
        tmp_path,
        "server",
        "127.0.0.1",
        valid=TIMES.get(kind, (-MINUTES, DAY)),
        purposes=[ExtendedKeyUsageOID.CLIENT_AUTH] if kind == "a client's" else BOTH,
    )
    ca = known.write(tmp_path / "ca")
    of_whom = ca if kind == "expired CA" else pair.cert

    async def work() -> None:
        server = FakeServer("s1")
        await server.start(dataclasses.replace(certs, server=pair))
        async with agent(config_for(certs, server.port, f"--ca-cert={ca}")) as clients:
            expected = words.format(shown(of_whom, kind.removesuffix(" CA")))
            await told(clients, f"127.0.0.1:{server.port}: {expected}")
        await server.stop()

    run(work())


@pytest.mark.parametrize("first", ["the call", "the end"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("expired", "certificate expired: the server refuses --agent-cert {}: renew it"),
        ("foreign", "unknown ca: the server does not know the CA of --agent-cert {}"),
        ("early", "bad certificate: the server refuses --agent-cert {}"),
        ("a server's", "unsupported certificate: the server refuses --agent-cert {}"),
    ],
)
def test_what_a_server_does_not_like_about_an_agents_certificate(
    certs: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    words: str,
    version: ssl.TLSVersion,
    first: str,
) -> None:
    """With TLS 1.3 it says so behind the handshake, when the call may be made already or not."""
    authority = Authority("ca")
    issuer = Authority("foreign") if kind == "foreign" else authority
    pair = issuer.issue(
        tmp_path,
        "agent",
        valid=TIMES.get(kind, (-MINUTES, DAY)),
        purposes=[ExtendedKeyUsageOID.SERVER_AUTH] if kind == "a server's" else BOTH,
    )
    if first == "the end":
        monkeypatch.setattr(agent_stream, "connect_tls", over_before_it_is_used)

    async def work() -> None:
        flags = (f"--agent-cert={pair.cert}", f"--agent-key={pair.key}")
        async with (
            refusing(certs, authority.write(tmp_path / "ca"), version) as port,
            agent(config_for(certs, port, *flags)) as clients,
        ):
            await until(lambda: clients.connect_failures >= 2, "it was tried twice")
            assert set(said(clients)) == {f"127.0.0.1:{port}: tls alert {words.format(pair.cert)}"}

    run(work())


def test_a_server_wants_a_certificate_where_there_is_none(certs: Certificates) -> None:
    async def work() -> None:
        async with refusing(certs, certs.ca) as port:
            config = dataclasses.replace(config_for(certs, port), cert=None, key=None)
            async with agent(config) as clients:
                await told(
                    clients,
                    f"127.0.0.1:{port}: tls alert certificate required: the server wants a "
                    "certificate: give --agent-cert and --agent-key",
                )

    run(work())


@contextlib.asynccontextmanager
async def refusing(
    certs: Certificates, ca: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> AsyncIterator[int]:
    """The port of a server with our TLS, which knows an authority; asyncio's sends no alerts."""
    context = Context(Side.SERVER, alpn=["h2"])
    context.openssl.set_max_proto_version(int(version))
    context.load_cert_chain(certs.server.cert, certs.server.key)
    context.load_verify_locations(ca)
    poller = Poller(asyncio.get_running_loop())
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    port = sock.getsockname()[1]
    acceptor = serve_tls(poller, sock, lambda: RpcProtocol(Role.SERVER), context, "test")
    try:
        yield port
    finally:
        acceptor.close()
        await until(lambda: not len(poller), "every connection is over")
        poller.close()


async def over_before_it_is_used(*args: Any) -> RpcProtocol:
    """As `connect_tls`, slower than the other end."""
    protocol: RpcProtocol = await connect_tls(*args)
    await until(lambda: protocol.connection.over is not None, "the server has refused")
    return protocol


# -- what it says ---------------------------------------------------------------------------------


def test_what_an_agent_says_of_itself(certs: Certificates, tmp_path: Path) -> None:
    async def work() -> None:
        token = token_file(tmp_path, "secret\n")
        flags = (
            f"--service-account-token-path={token}",
            "--agent-identifiers=host=n1&ipv4=1.2.3.4",
        )
        async with connected(certs, *flags) as (stream, _):
            said = stream.metadata
            assert said["agentid"] == "agent-1"
            assert said["agentidentifiers"] == "host=n1&ipv4=1.2.3.4"
            assert said["authorization"] == "Bearer secret", "without the newline of the file"
            assert said["nodenet-extensions"] == OURS.text()
            assert stream.call.path == "/AgentService/Connect"

    run(work())


def test_without_a_token_none_is_said(certs: Certificates) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, _):
            assert "authorization" not in stream.metadata
            assert stream.metadata["agentidentifiers"] == ""

    run(work())


# -- dials ----------------------------------------------------------------------------------------


def test_a_tunnel_there_and_back(certs: Certificates) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, clients), listening() as (address, peers):
            tunnel = await stream.connect(address)
            peer = await peers.get()
            stream.send(Data(tunnel, b"question"))
            assert await peer.reader.readexactly(8) == b"question"
            peer.writer.write(b"answer")
            assert await stream.bytes_of(tunnel, 6) == b"answer"
            stream.close(tunnel)
            assert await stream.next() == CloseResponse("", tunnel)
            assert await peer.reader.read() == b""
            await until(lambda: not clients.tunnels, "nothing is left")

    run(work())


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("127.0.0.1:{closed}", "dial tcp 127.0.0.1:{closed}: connect: connection refused"),
        ("[::1]:{closed}", "dial tcp [::1]:{closed}: connect: connection refused"),
        ("localhost:{closed}", "dial tcp localhost:{closed}: connect: connection refused"),
        ("nobody.invalid:80", "dial tcp: lookup nobody.invalid: "),
        (f"{'x' * 70}.invalid:80", f"dial tcp: lookup {'x' * 70}.invalid: no such host"),
        ("127.0.0.1", "dial tcp: address 127.0.0.1: missing port in address"),
    ],
)
def test_dials_that_fail(certs: Certificates, address: str, error: str) -> None:
    async def work() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            closed = probe.getsockname()[1]
        async with connected(certs) as (stream, _):
            stream.send(DialRequest("tcp", address.format(closed=closed), 9))
            answer = await stream.next()
            assert isinstance(answer, DialResponse) and answer.random == 9
            assert answer.error.startswith(error.format(closed=closed))

    run(work())


def test_servers_that_go_right_behind_the_handshake_are_failures_and_nothing_else(
    certs: Certificates,
) -> None:
    """Who dials hears of a connection that is lost before it is told that there is one."""

    def serve(listener: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs.server.cert, certs.server.key)
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # the server's is the last word
        for _ in range(10):
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as sock:
                linger = struct.pack("ii", 1, 0)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        complaints: list[str] = []
        loop.set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            serving = loop.run_in_executor(None, serve, listener)
            sockets = Sockets(loop)
            try:
                for _ in range(10):
                    stream = ServerStream(
                        config_for(certs, port), sockets, Counts(), lambda stream: None
                    )
                    with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port}: "):
                        await stream.connect("127.0.0.1", port)
                    del stream
                await serving
                await until(lambda: not len(sockets.poller), "every connection is over")
            finally:
                sockets.close()
        gc.collect()
        await asyncio.sleep(0)
        assert complaints == []

    run(work())


def test_a_black_hole_ends_in_time_and_holds_nobody_up(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent_remote.DIAL_SECONDS == 5.0, "as upstream"
    monkeypatch.setattr(agent_remote, "DIAL_SECONDS", 0.4)

    async def work() -> None:
        with black_hole() as hole:
            async with connected(certs) as (stream, _), listening() as (address, _):
                loop = asyncio.get_running_loop()
                began = loop.time()
                stream.send(DialRequest("tcp", hole, 1))
                await stream.connect(address, 2)  # is not answered after the first one
                answer = await stream.next()
                assert answer == DialResponse(f"dial tcp {hole}: i/o timeout", 0, 1)
                assert 0.35 < loop.time() - began < 15

    run(work())


def test_without_a_descriptor_a_dial_fails_in_words(
    certs: Certificates,
) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, clients), listening() as (address, _):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                stream.send(DialRequest("tcp", address, 1))
                text = f"dial tcp {address}: socket: too many open files"
                assert await stream.next() == DialResponse(text, 0, 1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await stream.connect(address, 2)
            assert clients.ready == 1

    run(work())


def test_a_cancelled_dial_reaches_nobody(certs: Certificates) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, clients), listening() as (address, peers):
            stream.send(DialRequest("tcp", address, 1), CloseDial(1))
            await stream.connect(address, 2)
            peer = await peers.get()
            # the cancelled one may have been accepted, and is gone then
            if not peers.empty():
                assert await peer.reader.read() == b""
            assert clients.tunnels == 1

    run(work())


def test_pending_dials_are_given_up_with_their_stream(certs: Certificates) -> None:
    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        async with (
            agent(config_for(certs, server.port)) as clients,
            listening() as (address, peers),
        ):
            await until(lambda: clients.ready == 1, "connected")
            stream = server.streams[0]
            await stream.connect(address, 1)
            peer = await peers.get()
            with black_hole() as hole:
                stream.send(DialRequest("tcp", hole, 2))
                await until(lambda: clients.tunnels == 2, "a tunnel and a dial")
                server.protocols[0].abort()
                with pytest.raises(ConnectionResetError):
                    await peer.reader.read()
            await until(lambda: clients.tunnels == 0, "nothing is left")
            await until(lambda: clients.ready == 1 and len(server.streams) == 2, "connected anew")
        await server.stop()

    run(work())


# -- data -----------------------------------------------------------------------------------------


def test_write_then_close(certs: Certificates) -> None:
    """Upstream delivered 12 of 50 uploads of 1 MiB that are closed at once; the worst had half."""

    async def work() -> None:
        data = os.urandom(1 << 20)
        async with connected(certs, peer=NONE) as (stream, _), listening() as (address, peers):
            for number in range(20):
                tunnel = await stream.connect(address, number + 1)
                peer = await peers.get()
                for at in range(0, len(data), 1 << 16):
                    stream.send(Data(tunnel, data[at : at + (1 << 16)]))
                stream.close(tunnel)
                assert await stream.next() == CloseResponse("", tunnel)
                assert await peer.reader.read() == data

    run(work())


def test_write_then_close_while_the_remote_sends(certs: Certificates) -> None:
    """close() of a socket with unread bytes is a reset, and a reset loses what is on its way."""

    async def work() -> None:
        data = os.urandom(4 << 20)
        async with connected(certs, peer=NONE) as (stream, _), listening() as (address, peers):
            tunnel = await stream.connect(address)
            peer = await peers.get()
            for at in range(0, len(data), 1 << 18):
                stream.send(Data(tunnel, data[at : at + (1 << 18)]))
            peer.writer.write(bytes(1 << 16))
            stream.close(tunnel)
            got = b""
            while len(got) < len(data):
                part = await peer.reader.read(1 << 16)
                assert part, f"{len(got)} of {len(data)} bytes"
                peer.writer.write(b"more")
                got += part
            assert got == data

    run(work())


@pytest.mark.parametrize("data", [b"", b"request"])
def test_who_was_sent_something_may_end_by_himself_and_others_are_let_go(
    certs: Certificates, data: bytes
) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, clients), listening() as (address, peers):
            tunnel = await stream.connect(address)
            peer = await peers.get()
            stream.send(Data(tunnel, data))
            assert await peer.reader.readexactly(len(data)) == data
            stream.close(tunnel)
            assert await stream.next() == CloseResponse("", tunnel)
            assert await peer.reader.read() == b""
            sockets = clients._sockets
            if data:
                peer.writer.write(b"last words")
                await asyncio.sleep(0.05)
                assert sockets.open == 1
                peer.writer.close()
                await peer.writer.wait_closed()
            await until(lambda: sockets.open == 0, "the socket is closed")

    run(work())


def test_half_close(certs: Certificates) -> None:
    """Upstream: a server that answers after EOF was answered 0 of 20 times."""

    async def work() -> None:
        async with connected(certs) as (stream, _), listening() as (address, peers):
            for number in range(50):
                tunnel = await stream.connect(address, number + 1)
                peer = await peers.get()
                stream.send(Data(tunnel, b"question"), HalfClose(tunnel))
                assert await peer.reader.read() == b"question"
                peer.writer.write(b"answer")
                peer.writer.close()
                assert await stream.bytes_of(tunnel, 6) == b"answer"
                assert await stream.next() == CloseResponse("", tunnel)

    run(work())


def test_the_other_half(certs: Certificates) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, _), listening() as (address, peers):
            tunnel = await stream.connect(address)
            peer = await peers.get()
            peer.writer.write(b"that is all")
            peer.writer.write_eof()
            assert await stream.bytes_of(tunnel, 11) == b"that is all"
            assert await stream.next() == HalfClose(tunnel)
            stream.send(Data(tunnel, b"still here"), HalfClose(tunnel))
            assert await peer.reader.read() == b"still here"
            assert await stream.next() == CloseResponse("", tunnel)

    run(work())


def test_a_reset_of_the_remote_is_told(certs: Certificates) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, _), listening() as (address, peers):
            tunnel = await stream.connect(address)
            peer = await peers.get()
            stream.send(Data(tunnel, b"x"))
            await peer.reader.readexactly(1)
            peer.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            )
            peer.cut()
            answer = await stream.next()
            text = f"read tcp {address}: connection reset by peer"
            assert answer == CloseResponse(text, tunnel)

    run(work())


def test_stalled_remote_with_a_server_of_ours(certs: Certificates) -> None:
    """It holds its window, and nothing else: dials and other tunnels go on."""

    async def work() -> None:
        async with connected(certs) as (stream, clients), listening() as (address, peers):
            deaf = await stream.connect(address, 1)
            peer = await peers.get()
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            left = OURS.window
            while left:  # a server sends no more than that before it gets a WINDOW
                stream.send(Data(deaf, bytes(1 << 16)))
                left -= 1 << 16
            for number in range(20):
                tunnel = await _connect_beside(stream, address, number + 2)
                other = await peers.get()
                stream.send(Data(tunnel, b"hello"))
                assert await other.reader.readexactly(5) == b"hello"
            assert clients.tunnels == 21

    run(work())


async def _connect_beside(stream: Stream, address: str, random: int) -> int:
    """As `Stream.connect`, past the WINDOWs of another tunnel."""
    stream.send(DialRequest("tcp", address, random))
    while True:
        packet = await stream.next()
        if isinstance(packet, DialResponse):
            assert not packet.error
            return packet.connect_id
        assert isinstance(packet, Window)


def test_a_download_is_large_pieces_and_bounded_by_the_window(certs: Certificates) -> None:
    async def work() -> None:
        data = os.urandom(3 << 20)
        async with connected(certs) as (stream, _), listening() as (address, peers):
            tunnel = await stream.connect(address)
            peer = await peers.get()
            peer.writer.write(data)
            got = b""
            while len(got) < OURS.window:
                packet = await stream.next()
                assert isinstance(packet, Data)
                got += packet.payload
            assert len(got) == OURS.window
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await stream.next()
            sizes = []
            while len(got) < len(data):
                stream.send(Window(tunnel, 1 << 19))
                want = min(1 << 19, len(data) - len(got))
                while want:
                    packet = await stream.next()
                    assert isinstance(packet, Data)
                    got += packet.payload
                    want -= len(packet.payload)
                    sizes.append(len(packet.payload))
            assert got == data
            assert sum(sizes) / len(sizes) >= 32_768

    run(work())


def test_what_has_ended_is_freed_without_the_garbage_collector(certs: Certificates) -> None:
    def there() -> list[object]:
        return [each for each in gc.get_objects() if type(each) in (Tunnel, Remote)]

    def left() -> int:
        return len(there()) - len(before)

    async def work() -> None:
        with black_hole() as hole:
            async with connected(certs) as (stream, clients), listening() as (address, peers):
                tunnels = [await stream.connect(address, number) for number in range(1, 31)]
                stream.send(
                    DialRequest("tcp", hole, 50), DialRequest("tcp", "nobody.invalid:1", 51)
                )
                stream.send(DialRequest("tcp", "127.0.0.1:1", 52), CloseDial(50))
                for tunnel in tunnels[:10]:
                    stream.close(tunnel)
                for tunnel in tunnels[10:20]:
                    stream.send(Data(tunnel, b"x"), HalfClose(tunnel))
                for _ in tunnels:
                    (await peers.get()).writer.close()
                for tunnel in tunnels[20:]:
                    stream.send(HalfClose(tunnel))
                await until(lambda: not clients.tunnels, "all have ended")
                await until(lambda: left() == 0, "nothing is left")

    gc.collect()
    before = there()  # of other tests; held, so that none that goes makes up for one that stays
    gc.disable()
    try:
        run(work())
    finally:
        gc.enable()


# -- the end --------------------------------------------------------------------------------------


def test_drain_is_said_at_once_and_tunnels_go_on(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_set, "QUIET_SECONDS", 0.2)

    async def work() -> None:
        async with connected(certs) as (stream, clients), listening() as (address, peers):
            tunnel = await stream.connect(address)
            peer = await peers.get()
            clients.drain()
            assert await stream.next() == Drain()
            stream.send(Data(tunnel, b"still"))
            assert await peer.reader.readexactly(5) == b"still"
            assert not await clients.drained(0.3), "a tunnel is left"
            late = await stream.connect(address, 2)
            stream.close(tunnel)
            stream.close(late)
            assert not await clients.drained(0.3), "their remotes have not ended"
            for each in (peer, await peers.get()):
                each.cut()
            assert await clients.drained(5.0)

    run(work())


def test_a_server_that_goes_away_keeps_its_tunnels(
    certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream closes every tunnel a second after the server's GOAWAY."""
    monkeypatch.setattr(agent_stream, "IDLE_SECONDS", 0.2)

    async def work() -> None:
        server = FakeServer("s1")
        await server.start(certs)
        async with (
            agent(config_for(certs, server.port)) as clients,
            listening() as (address, peers),
        ):
            await until(lambda: clients.ready == 1, "connected")
            stream = server.streams[0]
            tunnel = await stream.connect(address)
            peer = await peers.get()
            server.protocols[0].connection.drain()
            await until(lambda: len(server.streams) == 2, "connected anew beside it")
            await until(lambda: clients.ready == 1 and len(clients.streams) == 2, "both are kept")
            await asyncio.sleep(1.1)
            stream.send(Data(tunnel, b"alive"))
            assert await peer.reader.readexactly(5) == b"alive"
            stream.close(tunnel)
            assert await stream.next() == CloseResponse("", tunnel)
            await until(lambda: len(clients.streams) == 1, "the old stream ends when it is idle")
            await until(lambda: stream.over is not None, "and the server hears of it")
            peer.cut()
        await server.stop()

    run(work())


def test_garbage_from_a_server_ends_its_stream(certs: Certificates) -> None:
    async def work() -> None:
        async with connected(certs) as (stream, clients):
            stream.call.send(b"\xff\xff\xff\xff")
            await told(clients, "malformed packet of 4 bytes")
            assert clients.stream_errors == {"Internal": 1}
            await until(lambda: stream.over is not None, "the stream is ended")
            await until(lambda: clients.ready == 1, "and made anew")

    run(work())
