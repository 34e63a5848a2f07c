"""Tunnels of the client, against servers that a test plays: bytes, ends, refusals, bad peers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nodenet.errors import UsageError
from nodenet.konnectivity import client_connect, extensions
from nodenet.konnectivity.client import (
    DialFailed,
    Mode,
    ProxyUnreachable,
    Server,
    TlsFiles,
    TunnelLost,
    dial,
    parse_server,
)
from nodenet.konnectivity.client_grpc import HELD_BYTES, Proxy
from nodenet.konnectivity.extensions import NONE, OURS, Extensions
from nodenet.konnectivity.packets import (
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    HalfClose,
    Packet,
    pull_packet,
    push_packet,
)
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import Call, CallHandler
from nodenet.rpc.connection import Role
from nodenet.rpc.status import Code, Status
from tests.interop import certificates
from tests.interop.certificates import Authority, Certificates
from tests.unit.tls.wire import Theirs, connect, their_server

T = TypeVar("T")
ADDRESS = "10.0.0.1:80"


def run(work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: Unix sockets allow no long ones."""
    with tempfile.TemporaryDirectory(prefix="nn-") as name:
        yield Path(name)


class Tunnel(CallHandler):
    """A frontend's call at the server. ``script`` gets each packet."""

    def __init__(self, call: Call, script: Callable[[Tunnel, Packet], None]) -> None:
        self.call = call
        self.script = script
        self.packets: list[Packet] = []
        self.over: Status | None = None

    def received(self, message: bytes) -> None:
        packet = pull_packet(message)
        self.packets.append(packet)
        self.script(self, packet)

    def ended(self) -> None:
        self.call.end()

    def closed(self, status: Status) -> None:
        self.over = status

    def send(self, *packets: Packet) -> None:
        for packet in packets:
            self.call.send(push_packet(packet))


def echo(tunnel: Tunnel, packet: Packet) -> None:
    """Connects everything and sends back what comes."""
    match packet:
        case DialRequest(_, _, random):
            tunnel.send(DialResponse("", 7, random))
        case Data(7, payload):
            tunnel.send(Data(7, payload))
        case HalfClose(7):
            tunnel.send(HalfClose(7), CloseResponse("", 7))
        case CloseRequest(7):
            tunnel.send(CloseResponse("", 7))
        case _:
            pass


@contextlib.asynccontextmanager
async def grpc_server(
    where: Path | None,
    script: Callable[[Tunnel, Packet], None] = echo,
    *,
    peer: Extensions = OURS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[int, list[Tunnel]]]:
    """A ProxyService; its TCP port and its calls."""
    tunnels: list[Tunnel] = []
    protocols: list[RpcProtocol] = []

    def accept(call: Call) -> CallHandler | None:
        if call.path != "/ProxyService/Proxy":
            return None
        call.answer(((extensions.KEY, peer.text()),) if peer != NONE else ())
        tunnels.append(Tunnel(call, script))
        return tunnels[-1]

    def factory() -> RpcProtocol:
        return RpcProtocol(Role.SERVER, accept=accept, on_made=protocols.append)

    loop = asyncio.get_running_loop()
    if where is not None:
        server = await loop.create_unix_server(factory, str(where))
    else:
        server = await loop.create_server(factory, "127.0.0.1", 0, ssl=tls)
    port = 0 if where is not None else server.sockets[0].getsockname()[1]
    try:
        yield port, tunnels
    finally:
        server.close()
        for protocol in protocols:
            protocol.abort()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def connect_server(
    where: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[None]:
    """An HTTP CONNECT frontend that answers as ``serve`` does, after the header block."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head == b"CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        await serve(reader, writer)

    server = await asyncio.start_unix_server(accept, str(where))
    try:
        yield
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


# -- where a server is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("unix:/run/k.sock", "unix:/run/k.sock"),
        ("unix:///run/k.sock", "unix:/run/k.sock"),
        ("/run/k.sock", "unix:/run/k.sock"),
        ("10.0.0.1:8090", "10.0.0.1:8090"),
        ("https://[fd00::1]:8090/", "[fd00::1]:8090"),
        ("konnectivity.kube-system:443", "konnectivity.kube-system:443"),
    ],
)
def test_servers(text: str, shown: str) -> None:
    assert str(parse_server(text, TlsFiles(ca=Path("ca")))) == shown


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:x", "host:0", "unix:"])
def test_no_servers(text: str) -> None:
    with pytest.raises(UsageError):
        parse_server(text, TlsFiles(ca=Path("ca")))


def test_tcp_without_tls_is_refused() -> None:
    with pytest.raises(UsageError, match="TCP needs TLS"):
        parse_server("10.0.0.1:8090")


# -- gRPC -----------------------------------------------------------------------------------------


def test_bytes_there_and_back(folder: Path) -> None:
    data = os.urandom(3 << 20)

    async def work() -> bytes:
        async with (
            grpc_server(folder / "s") as (_, tunnels),
            await dial(f"unix:{folder}/s", ADDRESS) as stream,
        ):
            got = bytearray()

            async def read() -> None:
                while len(got) < len(data):
                    got.extend(await stream.read(10_000))

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(read(), name="read")
                await stream.write(data)
            sizes = [len(p.payload) for p in tunnels[0].packets if isinstance(p, Data)]
            assert max(sizes) <= 256 * 1024 and len(sizes) == 12
            return bytes(got)

    assert run(work()) == data


def test_half_close_where_the_server_knows_it(folder: Path) -> None:
    async def work(peer: Extensions) -> list[Packet]:
        async with grpc_server(folder / "s", peer=peer) as (_, tunnels):
            async with await dial(f"unix:{folder}/s", ADDRESS) as stream:
                await stream.write(b"x")
                assert await stream.read() == b"x"
                await stream.end()
                if peer.half_close:
                    assert await stream.read() == b"" and await stream.read() == b""
                    with pytest.raises(TunnelLost):
                        await stream.write(b"more")
            return tunnels[0].packets[2:]

    assert run(work(OURS)) == [HalfClose(7)]
    os.unlink(folder / "s")
    assert run(work(NONE)) == [CloseRequest(7)]


def test_a_failed_dial_says_why(folder: Path) -> None:
    def refuse(tunnel: Tunnel, packet: Packet) -> None:
        assert isinstance(packet, DialRequest)
        tunnel.send(DialResponse("other", 3, packet.random + 1))
        tunnel.send(DialResponse("No agent available", 0, packet.random))

    async def work() -> None:
        async with grpc_server(folder / "s", refuse):
            await dial(f"unix:{folder}/s", ADDRESS)

    with pytest.raises(DialFailed) as caught:
        run(work())
    assert caught.value.message == "cannot reach 10.0.0.1:80: No agent available"
    assert caught.value.address == ADDRESS and caught.value.status is None


def test_a_dial_that_is_given_up_by_the_server(folder: Path) -> None:
    def give_up(tunnel: Tunnel, packet: Packet) -> None:
        if isinstance(packet, DialRequest):
            tunnel.send(CloseDial(packet.random))

    async def work() -> None:
        async with grpc_server(folder / "s", give_up):
            await dial(f"unix:{folder}/s", ADDRESS)

    with pytest.raises(DialFailed, match="the dial was given up"):
        run(work())


def test_a_dial_without_an_answer_is_cancelled(folder: Path) -> None:
    async def work() -> list[Packet]:
        async with grpc_server(folder / "s", lambda _t, _p: None) as (_, tunnels):
            with pytest.raises(DialFailed, match=r"no answer within 0\.\d+ s"):
                await dial(f"unix:{folder}/s", ADDRESS, timeout=0.3)
            while len(tunnels[0].packets) < 2:
                await asyncio.sleep(0.01)
            return tunnels[0].packets

    request, cancel = run(work())
    assert isinstance(request, DialRequest) and cancel == CloseDial(request.random)


def test_a_server_lost_before_and_after_the_dial(folder: Path) -> None:
    def end(tunnel: Tunnel, packet: Packet) -> None:
        tunnel.call.end(Status(Code.UNAVAILABLE, "shutting down"))

    def end_later(tunnel: Tunnel, packet: Packet) -> None:
        echo(tunnel, packet)
        if isinstance(packet, Data):
            tunnel.call.end(Status(Code.UNAVAILABLE, "shutting down"))

    async def work() -> None:
        async with grpc_server(folder / "s", end):
            with pytest.raises(ProxyUnreachable, match="UNAVAILABLE: shutting down"):
                await dial(f"unix:{folder}/s", ADDRESS)
        (folder / "s").unlink()
        async with (
            grpc_server(folder / "s", end_later),
            await dial(f"unix:{folder}/s", ADDRESS) as stream,
        ):
            await stream.write(b"last")
            assert await stream.read() == b"last", "what came before is read before"
            with pytest.raises(TunnelLost, match="UNAVAILABLE: shutting down"):
                await stream.read()
            with pytest.raises(TunnelLost):
                await stream.write(b"x" * (HELD_BYTES + 1))

    run(work())


def test_the_remote_fails(folder: Path) -> None:
    def fail(tunnel: Tunnel, packet: Packet) -> None:
        if isinstance(packet, Data):
            tunnel.send(Data(7, b"begun"), CloseResponse("connection reset by peer", 7))
        else:
            echo(tunnel, packet)

    async def work() -> None:
        async with (
            grpc_server(folder / "s", fail),
            await dial(f"unix:{folder}/s", ADDRESS) as stream,
        ):
            await stream.write(b"x")
            assert await stream.read() == b"begun"
            with pytest.raises(TunnelLost, match="connection reset by peer"):
                await stream.read()

    run(work())


def test_packets_that_are_not_for_this_tunnel_are_ignored(folder: Path) -> None:
    def noise(tunnel: Tunnel, packet: Packet) -> None:
        if isinstance(packet, Data):
            tunnel.send(Data(8, b"foreign"), CloseResponse("", 8), HalfClose(8), Data(7, b""))
        echo(tunnel, packet)

    async def work() -> None:
        async with (
            grpc_server(folder / "s", noise),
            await dial(f"unix:{folder}/s", ADDRESS) as stream,
        ):
            await stream.write(b"mine")
            assert await stream.read() == b"mine"

    run(work())


def test_garbage_ends_the_tunnel(folder: Path) -> None:
    def garbage(tunnel: Tunnel, packet: Packet) -> None:
        echo(tunnel, packet)
        if isinstance(packet, Data):
            tunnel.call.send(b"\xff\xff\xff")

    async def work() -> None:
        async with (
            grpc_server(folder / "s", garbage),
            await dial(f"unix:{folder}/s", ADDRESS) as stream,
        ):
            await stream.write(b"x")
            assert await stream.read() == b"x"
            with pytest.raises(TunnelLost, match="malformed"):
                await stream.read()

    run(work())


def test_who_does_not_read_holds_the_server_back(folder: Path) -> None:
    sent = 0

    class Flood(Tunnel):
        def pull(self) -> tuple[bytes, ...]:
            nonlocal sent
            sent += 65_536
            return (push_packet(Data(7, bytes(65_536))),)

    def start(tunnel: Tunnel, packet: Packet) -> None:
        echo(tunnel, packet)
        if isinstance(packet, Data):
            flood = Flood(tunnel.call, echo)
            tunnel.call.handler = flood
            tunnel.call.want()

    async def work() -> None:
        async with (
            grpc_server(folder / "s", start),
            await dial(f"unix:{folder}/s", ADDRESS) as stream,
        ):
            await stream.write(b"go")
            seen = -1
            while sent != seen:
                seen = sent
                await asyncio.sleep(0.2)
            assert sent < 8 * HELD_BYTES
            got, wanted = 0, sent + HELD_BYTES
            while got < wanted:
                got += len(await stream.read(1 << 20))

    run(work())


def test_many_tunnels_on_one_connection_over_tls(certs: Certificates) -> None:
    async def work() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs.server.cert, certs.server.key)
        context.load_verify_locations(certs.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        async with grpc_server(None, tls=context) as (port, _):
            tls = TlsFiles(ca=certs.ca, cert=certs.client.cert, key=certs.client.key)
            server = Server(host="127.0.0.1", port=port, tls=tls)
            async with await Proxy.connect(server, timeout=30) as proxy:
                streams = [await proxy.dial(ADDRESS, timeout=30) for _ in range(50)]
                for number, stream in enumerate(streams):
                    await stream.write(b"%d" % number)
                for number, stream in enumerate(streams):
                    assert await stream.read() == b"%d" % number
                    await stream.close()
            foreign = Server(host="127.0.0.1", port=port, tls=TlsFiles(ca=certs.foreign_ca))
            with pytest.raises(ProxyUnreachable, match="certificate"):
                await Proxy.connect(foreign, timeout=30)
            renamed = TlsFiles(ca=certs.ca, server_name="other.example")
            with pytest.raises(ProxyUnreachable, match="certificate"):
                await dial(Server(host="127.0.0.1", port=port, tls=renamed), ADDRESS)
            missing = TlsFiles(ca=Path("/nope"))
            with pytest.raises(ProxyUnreachable, match="no such file"):
                await dial(Server(host="127.0.0.1", port=port, tls=missing), ADDRESS)

    run(work())


def test_an_authority_that_another_one_signed_is_believed(tmp_path: Path) -> None:
    """As by Go, and as by our agent: it is what the file holds."""
    middle = Authority("middle", issuer=Authority("root"))
    server = Theirs(their_server(middle.issue(tmp_path, "server", "localhost")))
    tls = TlsFiles(ca=middle.write(tmp_path / "ca"))
    connect(Theirs(tls.context(), "localhost"), server)


def test_nobody_at_the_socket(folder: Path) -> None:
    modes: list[Mode] = ["grpc", "http-connect"]
    for mode in modes:
        with pytest.raises(ProxyUnreachable, match="no such file or directory"):
            run(dial(f"unix:{folder}/s", ADDRESS, mode=mode))


# -- HTTP CONNECT ---------------------------------------------------------------------------------


def test_connect_carries_bytes_and_ends(folder: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 Connection Established\r\n\r\nbanner")
        writer.write(await reader.read())
        writer.close()

    async def work() -> None:
        async with (
            connect_server(folder / "s", serve),
            await dial(f"unix:{folder}/s", ADDRESS, mode="http-connect") as stream,
        ):
            assert await stream.read() == b"banner"
            await stream.write(b"all of it")
            await stream.end()
            assert await stream.read() == b"all of it"
            assert await stream.read() == b""

    run(work())


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\ndial tcp: refused\r\n", 502, "dial tcp: refused"),
        (b"HTTP/1.1 504 Gateway Timeout\r\n\r\n", 504, "Gateway Timeout"),
        (b"HTTP/1.1 201 Created\r\n\r\n", 201, "Created"),
    ],
)
def test_connect_refused(folder: Path, answer: bytes, status: int, reason: str) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async def work() -> None:
        async with connect_server(folder / "s", serve):
            await dial(f"unix:{folder}/s", ADDRESS, mode="http-connect")

    with pytest.raises(DialFailed) as caught:
        run(work())
    assert (caught.value.status, caught.value.reason) == (status, reason)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed the connection without an answer"),
        (b"HTTP/1.1 2", "is no HTTP"),
        (b"\0\0\x12\x04\0\0\0\0\0\r\n\r\n", "is no HTTP"),
        (b"x" * 200_000, "an answer without end"),
    ],
)
def test_what_is_no_connect_server(folder: Path, answer: bytes, reason: str) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async def work() -> None:
        async with connect_server(folder / "s", serve):
            await dial(f"unix:{folder}/s", ADDRESS, mode="http-connect")

    with pytest.raises(ProxyUnreachable) as caught:
        run(work())
    assert caught.value.reason == reason
    assert caught.value.hint == "is its --mode http-connect?"


def test_a_grpc_dial_at_a_server_of_the_other_mode(folder: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async def work() -> None:
        async with await asyncio.start_unix_server(serve, folder / "s"):
            await dial(f"unix:{folder}/s", ADDRESS, timeout=5)

    with pytest.raises(ProxyUnreachable, match="konnectivity server unix:") as caught:
        run(work())
    assert caught.value.hint == "is its --mode grpc?"


@pytest.mark.parametrize("mode", ["grpc", "http-connect"])
def test_a_file_of_no_use_is_named(certs: Certificates, mode: Mode) -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        where = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            for files, text in (
                (TlsFiles(ca=Path("/nope")), "cannot use /nope: no such file or directory"),
                (
                    TlsFiles(ca=certs.ca, cert=certs.client.cert, key=certs.server.key),
                    f"cannot use {certs.server.key}: it is not the key of {certs.client.cert}",
                ),
            ):
                with pytest.raises(ProxyUnreachable) as caught:
                    await dial(where, ADDRESS, mode=mode, tls=files)
                assert caught.value.message == f"konnectivity server {where}: {text}"

    run(work())


@pytest.mark.parametrize("mode", ["grpc", "http-connect"])
def test_a_server_that_wants_a_certificate(certs: Certificates, mode: Mode) -> None:
    """With TLS 1.3 it says so when the handshake is over for the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs.server.cert, certs.server.key)
    context.load_verify_locations(certs.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    def refuse(listener: socket.socket) -> None:
        # by a socket that blocks: asyncio's server hangs up before the alert has left
        sock, _ = listener.accept()
        with sock.dup() as kept:
            with contextlib.suppress(ssl.SSLError):
                context.wrap_socket(sock, server_side=True)
            kept.shutdown(socket.SHUT_WR)
            while kept.recv(65_536):  # unread bytes would make a reset of the end
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        server = threading.Thread(target=refuse, args=(listener,))
        server.start()
        with pytest.raises(ProxyUnreachable) as caught:
            run(dial(where, ADDRESS, mode=mode, tls=TlsFiles(ca=certs.ca)))
        server.join()
    assert caught.value.reason == "TLS: tlsv13 alert certificate required"
    causes: list[BaseException] = [caught.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert any(isinstance(error, ssl.SSLError) for error in causes)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "a",
        ":80",
        "a:",
        "a:http",
        "a:65536",
        "a b:80",
        "a\r\nX: y:80",
        "ü:80",
        f"{'a' * 256}:80",
    ],
)
@pytest.mark.parametrize("mode", ["grpc", "http-connect"])
def test_what_is_no_address_is_not_sent(folder: Path, mode: Mode, address: str) -> None:
    with pytest.raises(UsageError, match="^address "):
        run(dial(f"unix:{folder}/s", address, mode=mode))


def test_a_connect_server_that_says_nothing(folder: Path) -> None:
    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(10)

    async def work() -> None:
        async with connect_server(folder / "s", serve):
            await dial(f"unix:{folder}/s", ADDRESS, mode="http-connect", timeout=0.2)

    with pytest.raises(DialFailed, match="no answer within 0.2 s"):
        run(work())
    assert client_connect.CLOSE_SECONDS == 10.0


def test_the_package_gives_the_client_without_importing_it() -> None:
    code = (
        "import sys, nodenet.konnectivity as k;"
        "assert 'nodenet.konnectivity.client' not in sys.modules;"
        "from nodenet.konnectivity.client import dial;"
        "assert k.dial is dial and 'TlsFiles' in k.__all__;"
        "print(hasattr(k, 'nope'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")
