"""A pool and a server of HBONE in one loop, over loopback, with certificates of an embedded CA.

Everything between an application's socket and the other's is real but the proxies themselves: the
client side is the pool as a pod has it, the server side takes every tunnel into a `Tunnel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from _socket import socket as RawSocket
from collections.abc import Callable
from pathlib import Path

from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.client_connection import ClientConnection, DialFlow, PoolKey
from nodenet.agents.ztunnel.poller import STREAM, Poller
from nodenet.agents.ztunnel.pool import Pool, PoolTimers
from nodenet.agents.ztunnel.transport import Transport, Wires
from nodenet.agents.ztunnel.tunnel import Tunnel
from nodenet.errors import NodenetError
from nodenet.hbone import hpack_codec
from nodenet.hbone.connection import Connection
from nodenet.hbone.headers import Request, Response
from nodenet.hbone.settings import LocalSettings, Role
from nodenet.hbone.stream import Stream
from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.certificate import WorkloadCertificate
from nodenet.identity.csr import make_csr
from nodenet.identity.keys import PrivateKey
from nodenet.identity.spiffe import Identity
from nodenet.identity.tls import TlsContexts
from tests.unit.agents.ztunnel.tcp import Pair, connected

CLIENT, SERVER = "spiffe://cluster.local/ns/t/sa/client", "spiffe://cluster.local/ns/t/sa/server"


def certificate(ca: EmbeddedCa, identity: str) -> WorkloadCertificate:
    """A certificate for an hour."""
    named, key = Identity.parse(identity), PrivateKey.generate()
    chain = ca.sign_now(make_csr(key, named), named, 3600)
    return WorkloadCertificate.from_chain(named, key, chain, now=time.time())


class End:
    """One tunnel of a scene, at either side: its application and how it ended."""

    def __init__(self, buffers: int | None = None) -> None:
        self.pair: Pair = connected(buffers=buffers)
        self.tunnel: Tunnel | None = None
        self.over = False
        self.error: NodenetError | None = None
        self.after: Callable[[], None] = lambda: None

    @property
    def app(self) -> socket.socket:
        """The application's socket."""
        return self.pair.app

    def join(self, wires: Wires, transport: Transport, stream: Stream) -> None:
        self.tunnel = Tunnel(wires, transport, stream, self.pair.proxy, self)
        wires.poller.add(self.pair.proxy.fileno(), STREAM, self.tunnel)

    def tunnel_ended(self, error: NodenetError | None) -> None:
        self.over, self.error = True, error
        self.after()


class ServerSide:
    """A connection that was accepted: answers every CONNECT, or leaves it to the test."""

    def __init__(self, scene: Scene, sock: RawSocket) -> None:
        self.scene = scene
        self.streams: list[Stream] = []
        self.ends: list[End] = []
        self.error: NodenetError | None = None
        self.closing = False
        self.transport = Transport(scene.wires, sock, scene.server_context, self, server=True)
        scene.poller.add(sock.fileno(), STREAM, self.transport)
        self.transport.start()

    @property
    def core(self) -> Connection:
        assert self.transport.core is not None
        return self.transport.core

    def flush(self) -> None:
        self.transport.flush_soon()

    def secured(self, transport: Transport) -> Connection:
        return Connection(Role.SERVER, LocalSettings(), self)

    def ready(self, transport: Transport) -> None: ...

    def lost(self, transport: Transport, error: NodenetError) -> None:
        self.error = error
        if transport.core is not None:
            transport.core.lost()

    def on_request(self, stream: Stream, request: Request) -> None:
        if self.scene.refuses is not None:
            self.core.respond(stream, self.scene.refuses, end_stream=True)
            return
        self.streams.append(stream)
        if self.scene.answers:
            self.core.respond(stream, 200)
            end = End(self.scene.server_buffers)
            end.after = self._tunnel_over
            self.ends.append(end)
            end.join(self.scene.wires, self.transport, stream)
            self.flush()
        else:
            stream.receiver = Silent()

    def _tunnel_over(self) -> None:
        if self.closing and not self.core.active:
            self.transport.close()

    def on_response(self, stream: Stream, response: Response) -> None: ...
    def on_goaway(self, last_stream_id: int, code: int) -> None: ...
    def on_writable(self) -> None:
        self.transport.resume_waiting()

    def on_pong(self, opaque: bytes) -> None: ...


class Silent:
    """Takes what a stream brings and says nothing."""

    def data(self, payload: memoryview) -> None: ...
    def ended(self) -> None: ...
    def reset(self, code: int) -> None: ...
    def writable(self) -> None: ...


class Opener(End):
    """Wants a tunnel of the pool; joins its application to it when it is answered."""

    def __init__(self, scene: Scene, buffers: int | None = None) -> None:
        super().__init__(buffers)
        self.scene = scene
        self.connection: ClientConnection | None = None
        self.stream: Stream | None = None
        self.status: int | None = None
        self.failures: list[tuple[NodenetError, bool]] = []
        """Of `not_connected` and `refused`, with whether another endpoint may be tried."""

    def connected(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.stream = connection.open(self, hpack_codec.connect(b"10.0.0.1:80"))

    def answered(self, response: Response) -> None:
        self.status = response.status
        assert self.connection is not None and self.stream is not None
        if response.status == 200:
            transport = self.connection.transport
            assert transport is not None
            self.after = self.connection.ended
            self.join(self.scene.wires, transport, self.stream)

    def not_connected(self, error: NodenetError) -> None:
        self.failures.append((error, True))

    def refused(self, error: NodenetError, retry: bool) -> None:
        self.failures.append((error, retry))


class Scene:
    """Loop, poller, pool, listener. Closed at the end, and nothing may be left then."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
        self.loop = loop
        self.poller = Poller(loop)
        self.wires = Wires(loop, self.poller)
        ca = EmbeddedCa(directory)
        contexts = TlsContexts()
        self._kept = certificate(ca, CLIENT), certificate(ca, SERVER)
        self.client_context = contexts.client(self._kept[0])
        self.server_context = contexts.server(self._kept[1])
        self.timers = PoolTimers(self.wires, 5.0, 300.0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.answers = True
        self.refuses: int | None = None
        """The status every tunnel is refused with."""
        self.server_buffers: int | None = None
        self.client_rcvbuf: int | None = None
        self.accepts = True
        self.servers: list[ServerSide] = []
        self.held: list[socket.socket] = []
        """Accepted while nobody serves."""
        self.openers: list[Opener] = []
        self.pool = Pool(self.wires, self.timers, self)
        loop.add_reader(self.listener.fileno(), self._accept)

    def key(self, *identities: str) -> PoolKey:
        host, port = self.listener.getsockname()
        return PoolKey(Address(host, port), identities or (SERVER,), None, CLIENT)

    def open(self, buffers: int | None = None) -> Opener:
        """Asks the pool for a tunnel."""
        opener = Opener(self, buffers)
        self.openers.append(opener)
        self.pool.checkout(self.key(), opener)
        return opener

    def close(self) -> None:
        self.pool.cut()
        for server in self.servers:
            server.transport.abort(NodenetError("the test is over"))
        for end in [*self.openers, *(end for server in self.servers for end in server.ends)]:
            end.pair.app.close()
            with contextlib.suppress(OSError):
                end.pair.proxy.close()
        for sock in self.held:
            sock.close()
        self.loop.remove_reader(self.listener.fileno())
        self.listener.close()
        self.timers.close()
        self.wires.close()
        self.poller.close()

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        if not self.accepts:
            self.held.append(sock)
            return
        raw = RawSocket(sock.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, sock.detach())
        self.servers.append(ServerSide(self, raw))

    # -- pool.Connector --------------------------------------------------------------------------

    def dial_hbone(self, destination: Address) -> tuple[RawSocket, DialFlow]:
        sock = RawSocket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if self.client_rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.client_rcvbuf)
        sock.connect_ex(destination.sockaddr)
        return sock, (None, 0, destination)

    def dial_over(self, flow: DialFlow) -> None: ...
    def handshake_failed(self, error: NodenetError) -> None: ...
    def check_peer(self, connection: ssl.SSLObject, direction: str) -> None: ...

    def client_certificate(self, use: Callable[[ssl.SSLContext | NodenetError], None]) -> None:
        use(self.client_context)
