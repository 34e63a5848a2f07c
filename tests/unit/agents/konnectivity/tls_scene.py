"""Connections of `tls_transport` over TCP; their peers are the standard library's `ssl`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import pytest

from nodenet.agents.konnectivity.poller_transport import Acceptor
from nodenet.agents.konnectivity.tls_opening import connect_tls, serve_tls
from nodenet.agents.konnectivity.tls_transport import TlsTransport
from nodenet.tls.context import Context, Side
from nodenet.tls.engine import RECORD_BYTES
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity import transport_scene
from tests.unit.agents.konnectivity.agent_scene import until
from tests.unit.agents.konnectivity.transport_scene import LOOPS, Scene, on_loop

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
MUCH = random.Random(1).randbytes(3 << 19)
"""More than the sockets here hold."""
#: Of each socket, in each direction; the kernel doubles it.
_KERNEL_BYTES: Final = 128 << 10


class Recorder(transport_scene.Recorder):
    transport: TlsTransport


class Small(Recorder):
    """Reads two records at a time: more were decrypted with them, or can be."""

    room = 2 * RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Link:
    """Which end is ours, and what both speak."""

    ours: Side = Side.SERVER
    version: ssl.TLSVersion = TLS13

    def __str__(self) -> str:
        return f"our {self.ours.value}, {self.version.name}"


SERVER: Final = Link()
LINKS: Final = [Link(side, version) for side in Side for version in (TLS12, TLS13)]
links = pytest.mark.parametrize("link", LINKS, ids=str)
two_links = pytest.mark.parametrize("link", [SERVER, Link(Side.CLIENT, TLS12)], ids=str)
versions = pytest.mark.parametrize("version", [TLS12, TLS13], ids=lambda version: version.name)


def digest(data: bytes | bytearray) -> str:
    """Two of them are quicker compared than what they are of, and told apart by a person."""
    return hashlib.sha256(data).hexdigest()


def ours(side: Side, certs: Certificates) -> Context:
    """Of our end: it shows a certificate and wants one."""
    made = Context(side, alpn=["h2"])
    pair = certs.server if side is Side.SERVER else certs.client
    made.load_cert_chain(pair.cert, pair.key)
    made.load_verify_locations(certs.ca)
    return made


def theirs(link: Link, certs: Certificates) -> ssl.SSLContext:
    """Of the other end, with all that ours wants."""
    if link.ours is Side.SERVER:
        made, pair = ssl.create_default_context(cafile=certs.ca), certs.client
    else:
        made, pair = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certs.server
        made.load_verify_locations(certs.ca)
        made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(pair.cert, pair.key)
    made.minimum_version = made.maximum_version = link.version
    made.set_alpn_protocols(["h2"])
    # else an end without close_notify looks like one with it
    made.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return made


class Peer:
    """The other end. ``name`` is the server it expects, None when it is one itself."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str | None) -> None:
        self.sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._in, self._out, server_side=name is None, server_hostname=name
        )
        self._loop = asyncio.get_running_loop()
        self.server_random = b""
        """Of a client's handshake: the ServerHello's (RFC 8446 section 4.1.3)."""

    async def shake(self, first: bytes = b"", pieces: int = 1 << 20) -> None:
        """The whole handshake, as far as this end knows. ssl.SSLError.

        ``first`` goes out with the end of it, and all in so large ``pieces``.
        """
        done = False
        while not done:
            try:
                self.tls.do_handshake()
                done = True
                if first:
                    self.tls.write(first)
            except ssl.SSLWantReadError:
                pass
            finally:
                out = self._out.read()
                for at in range(0, len(out), pieces):
                    await self._loop.sock_sendall(self.sock, out[at : at + pieces])
                    if pieces < len(out):
                        await asyncio.sleep(0)
            if not done:
                await self._more()

    async def send(self, data: bytes | memoryview) -> None:
        """Sends data, in records as large as can be."""
        await self._loop.sock_sendall(self.sock, self.encrypted(data))

    async def take(self, size: int | None = None) -> bytes:
        """So many bytes, or all until close_notify. ssl.SSLError, SSLEOFError without one.

        What came before an error is in `got`.
        """
        got = self.got = bytearray()
        while size is None or len(got) < size:
            try:
                part = self.tls.read(1 << 18 if size is None else size - len(got))
            except ssl.SSLWantReadError:
                await self._more()
                continue
            except ssl.SSLZeroReturnError:  # both have said it
                part = b""
            except ssl.SSLError as error:
                if error.reason == "UNEXPECTED_EOF_WHILE_READING":  # before Python 3.11.3
                    raise ssl.SSLEOFError(*error.args) from error
                raise
            if not part:
                assert size is None, "the end comes after them"
                break
            got += part
        return bytes(got)

    async def ended(self) -> None:
        """Returns when nothing can come any more. OSError when it was a reset."""
        while await self._loop.sock_recv(self.sock, 1 << 18):
            pass

    def encrypted(self, data: bytes | memoryview) -> bytes:
        """Records of data, which are not sent."""
        self.tls.write(data)
        return self._out.read()

    def hello(self) -> bytes:
        """What a step of the handshake has made, which is not sent."""
        return self._out.read()

    def goodbye(self) -> bytes:
        """The record of close_notify, which is not sent."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self._out.read()

    async def finish(self, notify: bool = True) -> None:
        """Says that it sends no more, and sends no more."""
        if notify:
            await self._loop.sock_sendall(self.sock, self.goodbye())
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Ends it without a word, and drops what is on the way."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    async def _more(self) -> None:
        data = await self._loop.sock_recv(self.sock, 1 << 18)
        self.server_random = self.server_random or data[11:43]
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()


class TlsScene(Scene):
    """Connections between our transport and `ssl`; ``direct`` is how our server's are watched."""

    def __init__(self, certs: Certificates, direct: bool) -> None:
        super().__init__()
        self.certs = certs
        self.direct = direct

    async def connect(self, protocol: Recorder, link: Link = SERVER) -> Peer:
        """The peer of a new connection; both ends are done with the handshake."""
        if link.ours is Side.SERVER:
            self.serve(lambda: protocol)
            peer = self.client(link)
            await peer.shake()
            await until(lambda: hasattr(protocol, "transport"), "the protocol is made")
            return peer
        near, peer = self.server(link)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(peer.shake())
            assert await self.dialled(near, protocol) is protocol
        return peer

    async def dialled(
        self,
        near: socket.socket,
        protocol: Recorder,
        context: Context | None = None,
        name: str = "localhost",
    ) -> Recorder:
        """What `connect_tls` makes of a socket."""
        self.protocols.append(protocol)
        return await connect_tls(
            self.poller, near, lambda: protocol, context or ours(Side.CLIENT, self.certs), name
        )

    def serve(self, make: Callable[[], Recorder], context: Context | None = None) -> Acceptor:
        """A listener of ours, whose protocols are kept."""

        def factory() -> Recorder:
            self.protocols.append(make())
            return self.protocols[-1]  # type: ignore[return-value]  # just put there

        used, sock = context or ours(Side.SERVER, self.certs), self.listening()
        self.servers.append(
            serve_tls(self.poller, sock, factory, used, "agents", direct=self.direct)
        )
        return self.servers[-1]

    def listening(self) -> socket.socket:
        """The socket of a listener."""
        sock = self._socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen(1024)
        self.port: int = sock.getsockname()[1]
        return sock

    def client(self, link: Link = SERVER, context: ssl.SSLContext | None = None) -> Peer:
        """One of the last listener's, which has said nothing yet."""
        return Peer(self.dial(), context or theirs(link, self.certs), "localhost")

    def dial(self) -> socket.socket:
        """A connection to the last listener."""
        sock = self._socket()
        sock.connect(("127.0.0.1", self.port))
        return self._talker(sock)

    def server(
        self, link: Link = Link(Side.CLIENT), context: ssl.SSLContext | None = None
    ) -> tuple[socket.socket, Peer]:
        """A socket to connect with, and the server there, which has said nothing yet."""
        near, far = self.pair()
        return near, Peer(far, context or theirs(link, self.certs), None)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Two connected sockets of TCP; the second is kept."""
        with self._socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            near = self._socket()
            near.connect(listener.getsockname())
            far, _ = listener.accept()
        return near, self._talker(far)

    def _socket(self) -> socket.socket:
        made = socket.socket()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            made.setsockopt(socket.SOL_SOCKET, option, _KERNEL_BYTES)
        return made

    def _talker(self, sock: socket.socket) -> socket.socket:
        # a reset comes behind all that was sent
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.keep(sock)


Run = Callable[[Callable[[TlsScene], Coroutine[Any, Any, None]]], None]


@dataclass(frozen=True, slots=True)
class Mode:
    """Which loop, and who watches the sockets of our server: poller or loop."""

    loop: str
    direct: bool

    def __str__(self) -> str:
        return f"{self.loop}, by the {'loop' if self.direct else 'poller'}"


MODES: Final = [Mode(loop, direct) for loop in LOOPS for direct in (False, True)]


def running(mode: Mode, certs: Certificates) -> Run:
    """Runs tests in a mode."""
    return on_loop(mode.loop, lambda: TlsScene(certs, mode.direct))
