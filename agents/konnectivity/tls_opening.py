"""How TLS connections come about: accepted by a listener, or made by a client."""

from __future__ import annotations

import asyncio
import logging
import socket
from _socket import socket as RawSocket
from collections.abc import Callable
from typing import TypeVar

from nodenet.agents.konnectivity.poller_transport import Acceptor
from nodenet.agents.konnectivity.tls_transport import TlsTransport, peer_name
from nodenet.agents.ztunnel.poller import Poller
from nodenet.tls.context import Context
from nodenet.tls.engine import Engine
from nodenet.tls.errors import PeerLeft

P = TypeVar("P", bound=asyncio.BaseProtocol)

logger = logging.getLogger(__name__)


def serve_tls(
    poller: Poller,
    sock: socket.socket,
    factory: Callable[[], asyncio.BaseProtocol],
    context: Context,
    name: str,
    *,
    direct: bool = False,
) -> Acceptor:
    """Serves a listening TCP socket, which is the acceptor's then; a protocol each handshake.

    ``name`` is what the log calls it when a handshake fails; ``direct``: see `Poller.add_direct`.
    """
    loop = asyncio.get_running_loop()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is accepted inherits it

    def make(sock: RawSocket) -> None:
        peer = sock.getpeername  # a tuple, and only who fails is asked

        def failed(error: Exception) -> None:
            # whoever looks whether a port is open ends without a word
            level = logging.DEBUG if isinstance(error, (OSError, PeerLeft)) else logging.INFO
            if logger.isEnabledFor(level):
                who = peer_name(peer)
                logger.log(level, "%s: TLS with %s came to nothing: %s", name, who, error)

        engine = Engine(context)
        transport = TlsTransport(loop, poller, sock, engine, factory, failed, direct=direct)
        try:
            transport.start()
        except BaseException:
            transport.abort()
            raise

    return Acceptor(poller, sock, make)


async def connect_tls(
    poller: Poller,
    sock: socket.socket,
    factory: Callable[[], P],
    context: Context,
    server_name: str,
) -> P:
    """A client's connection over a connected socket, which is its own then; a direct one.

    HandshakeFailed, OSError; it is closed then, and also when the caller does not wait for it.
    """
    loop = asyncio.get_running_loop()
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        engine = Engine(context, server_name)
    except BaseException:
        sock.close()
        raise
    raw = RawSocket(sock.family, sock.type | socket.SOCK_NONBLOCK, 0, sock.detach())
    settled: asyncio.Future[None] = loop.create_future()
    made: list[P] = []
    # not the future's: what is raised here would hold this frame, and that the future
    errors: list[Exception] = []

    def settle() -> None:
        if not settled.done():
            settled.set_result(None)

    def first() -> P:
        made.append(factory())
        loop.call_soon(settle)
        return made[0]

    def failed(error: Exception) -> None:
        errors.append(error)
        settle()

    transport = TlsTransport(loop, poller, raw, engine, first, failed, direct=True)
    try:
        transport.start()
        await settled
        if errors:
            raise errors.pop()
        return made.pop()
    except BaseException:
        transport.abort()
        raise
