"""TLS on the poller with peers and protocols that do wrong, and what is left of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from _socket import socket as RawSocket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from OpenSSL import SSL

from nodenet.agents.konnectivity import tls_opening, tls_transport
from nodenet.agents.konnectivity.tls_opening import connect_tls, serve_tls
from nodenet.agents.konnectivity.tls_transport import TlsTransport
from nodenet.tls.context import Side
from nodenet.tls.engine import Engine
from nodenet.tls.errors import RecordsBroken
from tests.unit.agents.konnectivity.agent_scene import until
from tests.unit.agents.konnectivity.record_forger import Forger, OldForger
from tests.unit.agents.konnectivity.tls_scene import (
    LINKS,
    MUCH,
    TLS12,
    TLS13,
    Link,
    Peer,
    Recorder,
    Run,
    Small,
    TlsScene,
    digest,
    ours,
    theirs,
    two_links,
)
from tests.unit.agents.konnectivity.transport_scene import echo, fail, freed, over

# -- records that are not as they should be -------------------------------------------------------


@two_links
@pytest.mark.parametrize("answers", [False, True])
def test_a_broken_record_ends_it_behind_what_came_before(
    run_tls: Run, link: Link, answers: bool
) -> None:
    async def test(scene: TlsScene) -> None:
        protocol = Recorder(data=echo) if answers else Recorder()
        peer = await scene.connect(protocol, link)
        good, bad = peer.encrypted(b"good"), bytearray(peer.encrypted(b"bad"))
        bad[-1] ^= 1
        await scene.loop.sock_sendall(peer.sock, good + bytes(bad))
        error = await over(protocol)
        assert isinstance(error, RecordsBroken)
        assert error.reason in ("decryption failed or bad record mac", "cipher operation failed")
        assert protocol.got == b"good" and protocol.ends == 0
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            await peer.take()

    run_tls(test)


async def telling(scene: TlsScene, folder: Path, version: ssl.TLSVersion) -> tuple[Peer, list[str]]:
    """A client of the last listener, done with the handshake, and the lines of its secrets."""
    context, path = theirs(Link(version=version), scene.certs), folder / "secrets"
    context.keylog_filename = str(path)
    peer = scene.client(context=context)
    await peer.shake()
    context.keylog_filename = None  # type: ignore[assignment]  # closes it
    await until(lambda: bool(scene.protocols), "the protocol is made")
    return peer, path.read_text().splitlines()


def test_a_flood_of_key_updates_makes_nothing_wait(run_tls_twice: Run, tmp_path: Path) -> None:
    """Each asks for one of ours, and the peer reads none of them."""

    async def test(scene: TlsScene) -> None:
        scene.serve(lambda: Recorder(data=echo))
        peer, secrets = await telling(scene, tmp_path, TLS13)
        (secret,) = (line.split()[2] for line in secrets if "CLIENT_TRAFFIC_SECRET_0" in line)
        forger = Forger(bytes.fromhex(secret))
        records = [forger.key_update() for _ in range(1_000)]
        await scene.loop.sock_sendall(peer.sock, b"".join([*records, forger.record(b"ask", 23)]))
        assert await peer.take(3) == b"ask", "with our new keys"
        (protocol,) = scene.protocols
        assert protocol.lost == [] and not protocol.transport.get_write_buffer_size()
        await scene.sleeps()

    run_tls_twice(test)


@pytest.mark.parametrize("how", ["goes on", "resets", "ends", "we close", "we close at last"])
def test_a_message_of_the_handshake_may_come_in_two_records(
    run_tls: Run, tmp_path: Path, how: str
) -> None:
    """What is written in between waits for the rest of it (RFC 8446 section 5.1)."""

    async def test(scene: TlsScene) -> None:
        scene.serve(lambda: Recorder(data=lambda me, data: me.transport.close()))
        peer, secrets = await telling(scene, tmp_path, TLS13)
        (secret,) = (line.split()[2] for line in secrets if "CLIENT_TRAFFIC_SECRET_0" in line)
        forger = Forger(bytes.fromhex(secret))
        (protocol,) = scene.protocols
        first, second = forger.key_update_in_two()
        await scene.loop.sock_sendall(peer.sock, first)
        await scene.sleeps()
        protocol.transport.write(b"between")
        protocol.transport.write(MUCH)
        await scene.sleeps()
        assert protocol.transport.get_write_buffer_size() == 7 + len(MUCH)
        assert protocol.flow == ["pause"] and protocol.lost == []
        if how == "resets":
            peer.reset()
            assert isinstance(await over(protocol), ConnectionError)
            return
        if how == "we close":
            protocol.transport.close()
        if how in ("ends", "we close"):  # nobody can write what waits any more
            peer.sock.shutdown(socket.SHUT_WR)
            assert await over(protocol) is None
            return
        await scene.loop.sock_sendall(
            peer.sock, second if how == "goes on" else second + forger.record(b"close", 23)
        )
        assert digest(await peer.take(7 + len(MUCH))) == digest(b"between" + MUCH)
        if how == "we close at last":
            assert await peer.take() == b""
            await peer.finish()
            assert await over(protocol) is None
            return
        protocol.transport.write(b"behind")
        assert await peer.take(6) == b"behind" and protocol.lost == []
        assert protocol.flow == ["pause", "resume"]

    run_tls(test)


def test_a_peer_that_asks_and_asks_and_does_not_read_is_cut(
    run_tls: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of TLS 1.2 that wants to renegotiate is told each time that there is no such."""
    monkeypatch.setattr(tls_transport, "MAX_UNREAD_BYTES", 30_000)

    async def test(scene: TlsScene) -> None:
        scene.serve(Recorder)
        peer, secrets = await telling(scene, tmp_path, TLS12)
        (protocol,) = scene.protocols
        _, random, secret = secrets[-1].split()
        forger = OldForger(bytes.fromhex(secret), peer.server_random, bytes.fromhex(random))
        await scene.loop.sock_sendall(peer.sock, forger.record(b"\1\0\0\0", 22))
        assert (await scene.loop.sock_recv(peer.sock, 10_000))[0] == 21, "it is answered"

        async def ask() -> None:
            while not protocol.lost:
                hellos = [forger.record(b"\1\0\0\0", 22) for _ in range(100)]
                await scene.loop.sock_sendall(peer.sock, b"".join(hellos))

        with contextlib.suppress(ConnectionError):
            await ask()
        assert str(await over(protocol)) == "the peer does not read"

    run_tls(test)


# -- sends that fail, and peers that do not read -------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.EPIPE])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_send_that_fails_is_noticed_wherever_it_is(
    run_tls_twice: Run, number: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is the client's first word, the second the end of its handshake."""

    class Failing(RawSocket):
        sent = 0

        def send(self, data: Any, flags: int = 0) -> int:
            self.sent += 1
            if self.sent == at:
                raise OSError(number, os.strerror(number))
            return super().send(data, flags)

    async def test(scene: TlsScene) -> None:
        monkeypatch.setattr(tls_opening, "RawSocket", Failing)
        near, peer = scene.server()
        shaking = asyncio.ensure_future(peer.shake())
        protocol = Recorder()
        async with asyncio.timeout(3):
            if at < 3:
                with pytest.raises(OSError, match=os.strerror(number)):
                    await scene.dialled(near, protocol)
                assert not hasattr(protocol, "transport")
            else:
                await scene.dialled(near, protocol)
                await shaking
                protocol.transport.write(b"ask")
                # another end of the socket would tell by itself
                peer.sock.shutdown(socket.SHUT_WR)
                error = await over(protocol)
                assert isinstance(error, OSError) and error.errno == number
        shaking.cancel()
        await asyncio.wait([shaking])

    run_tls_twice(test)


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_who_ends_and_does_not_read_is_cut_unless_something_is_taken(
    run_tls_twice: Run, ends: bool, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever of the two ends it."""
    monkeypatch.setattr(tls_transport, "FLUSH_SECONDS", 0.3 if takes else 0.1)
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.1)

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        protocol.transport.write(MUCH)
        began = scene.loop.time()
        if ends:
            await peer.finish()
        else:
            protocol.transport.close()
        if takes:
            got = bytearray()
            while len(got) < len(MUCH):
                got += await peer.take(min(len(MUCH) // 16, len(MUCH) - len(got)))
                await asyncio.sleep(0.03)
            assert digest(got) == digest(MUCH)
            assert scene.loop.time() - began > 0.4
            assert await peer.take() == b""
            await peer.ended()
        assert await over(protocol) is None
        if not takes:
            assert scene.loop.time() - began < 5
            with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                await peer.take()

    run_tls_twice(test)


def test_what_the_kernel_has_at_the_end_is_waited_for(
    run_tls_twice: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is closed answers what comes with a reset, and that takes what is unread."""
    monkeypatch.setattr(tls_transport, "SHUTDOWN_SECONDS", 0.1)
    size = 300_000  # of which the peer's kernel has a part, and ours the rest

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        protocol.transport.write(MUCH[:size])
        protocol.transport.close()
        for _ in range(8):
            await asyncio.sleep(0.05)
            await peer.send(b"still here")
        assert protocol.transport.get_write_buffer_size() == 0 and not protocol.lost
        assert digest(await peer.take()) == digest(MUCH[:size])
        assert await over(protocol) is None

    run_tls_twice(test)


@pytest.mark.parametrize("notify", [False, True])
@pytest.mark.parametrize("talked", [False, True])
def test_a_peer_that_ends_and_closes_its_socket_is_no_fault(
    run_tls: Run, talked: bool, notify: bool
) -> None:
    """It answers our last words with a reset, because nobody is there any more."""

    def say(me: Recorder) -> bool:
        for _ in range(3):
            me.transport.write(b"bye")
        return False

    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder(eof=say) if talked else Recorder())
        if talked:
            protocol.transport.write(b"hello")
            assert await peer.take(5) == b"hello"
        # what came besides is read too, so that the close is none itself
        with contextlib.suppress(BlockingIOError):
            peer.sock.recv(100_000)
        await peer.finish(notify)
        peer.sock.close()
        assert await over(protocol) is None
        assert protocol.ends == 1

    run_tls(test)


# -- protocols that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["made", "first", "data", "eof", "paused", "resumed"])
def test_a_protocol_that_fails_ends_alone(
    run_tls: Run, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(scene: TlsScene) -> None:
        def data(me: Recorder, data: bytes) -> None:
            if where == "first" or data == b"fail":
                fail()
            me.transport.write(MUCH if where in ("paused", "resumed") else data)

        hook = {} if where in ("first", "data") else {where: fail}
        makes = iter([Recorder(data=echo), Recorder(data=data, **hook), Recorder(data=echo)])
        scene.serve(lambda: next(makes))
        good, bad = scene.client(), scene.client()
        await good.shake(b"one")
        assert await good.take(3) == b"one"
        await bad.shake(b"" if where == "made" else b"two")
        if where in ("data", "eof"):
            assert await bad.take(3) == b"two"
        if where == "data":
            await bad.send(b"fail")
        elif where == "eof":
            await bad.finish()
        with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
            await bad.take()
        assert await over(scene.protocols[1]) is None
        (logged,) = caplog.messages
        assert "bug: TlsTransport failed" in logged
        await good.send(b"still")
        assert await good.take(5) == b"still"
        other = scene.client()
        await other.shake(b"three")
        assert await other.take(5) == b"three"

    run_tls(test)


@pytest.mark.parametrize("middle", [False, True])
def test_a_protocol_that_fails_when_it_reads_on_ends_alone(
    run_tls: Run, middle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether what it gets comes from the socket or was read before."""

    async def test(scene: TlsScene) -> None:
        def data(me: Recorder, data: bytes) -> None:
            if len(me.got) > len(data) or not middle:
                fail()
            me.transport.pause_reading()

        peer = await scene.connect(protocol := Small(data=data))
        if not middle:
            protocol.transport.pause_reading()
        await peer.send(MUCH[:200_000])
        await scene.sleeps()
        protocol.transport.resume_reading()
        assert await over(protocol) is None
        assert "a bug" in caplog.text
        assert len(protocol.got) == (2 if middle else 1) * Small.room

    run_tls(test)


def test_a_connection_without_a_protocol_is_closed(
    run_tls: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(scene: TlsScene) -> None:
        makes: list[Callable[[], Recorder]] = [lambda: Recorder(data=echo), fail]
        scene.serve(lambda: makes.pop()())
        bad, good = scene.client(), scene.client()
        await bad.shake(b"one")
        with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
            await bad.take()
        await good.shake(b"two")
        assert await good.take(3) == b"two"
        assert "a bug" in caplog.text and "NoneType" not in caplog.text

    run_tls(test)


def test_who_dials_hears_that_there_is_no_protocol(run_tls: Run) -> None:
    async def test(scene: TlsScene) -> None:
        near, peer = scene.server()
        shaking = asyncio.ensure_future(peer.shake())
        context = ours(Side.CLIENT, scene.certs)
        async with asyncio.timeout(3):
            with pytest.raises(ValueError, match="a bug"):
                await connect_tls(scene.poller, near, fail, context, "localhost")
        await asyncio.wait([shaking])
        await until(lambda: not len(scene.poller), "nothing is left")

    run_tls(test)


def test_who_dials_for_a_protocol_that_fails_at_once_is_not_left_waiting(run_tls: Run) -> None:
    async def test(scene: TlsScene) -> None:
        near, peer = scene.server()
        shaking = asyncio.ensure_future(peer.shake())
        protocol = Recorder(made=fail)
        async with asyncio.timeout(3):
            with contextlib.suppress(ValueError):
                await scene.dialled(near, protocol)
        assert await over(protocol) is None
        await asyncio.wait([shaking])

    run_tls(test)


# -- many of them, and what is left ---------------------------------------------------------------


def test_two_hundred_at_once_have_their_answers(run_tls_twice: Run) -> None:
    async def test(scene: TlsScene) -> None:
        scene.serve(lambda: Recorder(data=echo))

        async def ask(number: int) -> None:
            peer = scene.client(Link(version=LINKS[number % 2].version))
            await peer.shake(b"%04d" % number)
            assert await peer.take(4) == b"%04d" % number
            await peer.finish(notify=number % 3 > 0)
            assert await peer.take() == b""

        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(ask(number))
        for protocol in scene.protocols:
            assert await over(protocol) is None
        assert len(scene.protocols) == 200 and len(scene.poller) == 1

    run_tls_twice(test)


class Plain(asyncio.BufferedProtocol):
    """Keeps nothing, also not why it ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(TlsTransport, transport)
        self.over = False

    def get_buffer(self, sizehint: int) -> memoryview:
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(BUFFER[:nbytes].tobytes())

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        del self.transport


BUFFER = memoryview(bytearray(256 << 10))


async def served(scene: TlsScene, make: Callable[[], Plain], how: str) -> Peer:
    """A client, as far as it comes."""
    context = ours(Side.SERVER, scene.certs)
    sock = scene.listening()
    server = serve_tls(scene.poller, sock, make, context, "agents", direct=scene.direct)
    scene.servers.append(server)
    bare = ssl.create_default_context(cafile=scene.certs.ca)
    peer = scene.client(context=bare if how == "refused" else None)
    if how == "given up":
        await scene.sleeps()
    else:
        await peer.shake()
    return peer


async def dialled(scene: TlsScene, make: Callable[[], Plain], how: str) -> Peer:
    """A server, when it is connected or is not."""
    near, peer = scene.server()
    name = "nobody" if how == "refused" else "localhost"
    context = ours(Side.CLIENT, scene.certs)
    dialling = asyncio.ensure_future(connect_tls(scene.poller, near, make, context, name))
    if how == "given up":
        await scene.sleeps()
        dialling.cancel()
    else:
        with contextlib.suppress(ssl.SSLError):  # it reads why it is refused
            await peer.shake()
    await asyncio.wait([dialling])
    assert dialling.cancelled() or (dialling.exception() is None) == (how != "refused")
    return peer


async def ended(peer: Peer, protocol: Plain, how: str) -> None:
    """It has worked, and ends."""
    await peer.send(b"ask")
    assert await peer.take(3) == b"ask"
    if how == "broken":
        good, bad = peer.encrypted(b"good"), bytearray(peer.encrypted(b"bad"))
        bad[-1] ^= 1
        await asyncio.get_running_loop().sock_sendall(peer.sock, good + bytes(bad))
        await until(lambda: protocol.over, "it is noticed")
    elif how == "abort":
        protocol.transport.abort()
    elif how == "reset":
        peer.reset()
    elif how == "deaf":  # what it is answered meets a socket that is gone
        peer.sock.send(peer.encrypted(b"more"))
        peer.reset()
    else:
        await peer.finish(notify=how == "goodbye")


@pytest.mark.parametrize(
    "how", ["goodbye", "end", "reset", "deaf", "abort", "broken", "refused", "given up"]
)
@pytest.mark.parametrize("side", Side)
def test_what_has_ended_is_freed_without_the_garbage_collector(
    run_tls_twice: Run, side: Side, how: str
) -> None:
    async def once(scene: TlsScene) -> None:
        made: list[Plain] = []

        def make() -> Plain:
            made.append(Plain())
            return made[-1]

        peer = await (served if side is Side.SERVER else dialled)(scene, make, how)
        if how not in ("refused", "given up"):
            await until(lambda: bool(made), "the protocol is made")
            await ended(peer, made.pop(), how)
        peer.sock.close()
        await until(lambda: len(scene.poller) == len(scene.servers), "it is over")
        await asyncio.sleep(0)

    async def test(scene: TlsScene) -> None:
        with freed(TlsTransport, Engine, SSL.Connection, Plain):
            await once(scene)

    run_tls_twice(test)


def test_what_is_known_of_a_connection(run_tls_twice: Run) -> None:
    async def test(scene: TlsScene) -> None:
        peer = await scene.connect(protocol := Recorder())
        transport = protocol.transport
        assert transport.get_extra_info("peername") == peer.sock.getsockname()
        sock = transport.get_extra_info("socket")
        assert sock.getsockname() == peer.sock.getpeername()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert transport.get_extra_info("unknown", 7) == 7
        peer.reset()
        await over(protocol)
        assert transport.get_extra_info("peername", "gone") == "gone"

    run_tls_twice(test)
