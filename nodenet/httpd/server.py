"""The server: accepts on its listeners, bounds how many, ends without losing an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from nodenet.endpoint import format_host_port
from nodenet.httpd.connection import ClientConnection, Limits, linger
from nodenet.httpd.messages import Peer
from nodenet.httpd.routes import Routes
from nodenet.httpd.sockets import UnixListener, peer_of

#: For requests under way when the server is closed.
GRACE_SECONDS: Final = 5.0
_REFUSAL: Final = "HTTP/1.1 {}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

logger = logging.getLogger(__name__)


class HttpServer:
    """Serves routes on listeners from entering until leaving it::

        listeners = [*open_tcp("localhost", 15000, "--admin-port"), open_unix(path, "--id")]
        async with HttpServer("admin", routes, listeners) as server:
            ...
            await server.close()      # requests under way finish; leaving does this too

    ``allow`` decides on peers of Unix sockets, whose mode has decided already (None: all). Owns
    the listeners, also when it is never entered: call `discard` then.
    """

    def __init__(
        self,
        name: str,
        routes: Routes,
        listeners: Sequence[socket.socket | UnixListener],
        *,
        limits: Limits | None = None,
        allow: Callable[[Peer], bool] | None = None,
    ) -> None:
        self.name = name
        self._routes = routes
        self._listeners = list(listeners)
        self._limits = limits or Limits()
        self._allow = allow
        self._servers: list[asyncio.Server] = []
        self._clients: dict[asyncio.Task[None], ClientConnection] = {}
        self._tasks = asyncio.TaskGroup()
        self._closing = False
        self._refusing = False
        self._refusals = 0
        """Clients being told so; each has a second for it."""

    @property
    def addresses(self) -> list[str]:
        """Where it listens: ``127.0.0.1:15000``, ``[::1]:15000``, a path."""
        return [_address(each) for each in self._listeners]

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return len(self._clients)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        for listener in self._listeners:
            if isinstance(listener, UnixListener):
                server = await asyncio.start_unix_server(self._accepted, sock=listener.sock)
            else:
                server = await asyncio.start_server(self._accepted, sock=listener)
            self._servers.append(server)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close(GRACE_SECONDS if kind is None else 0)
        finally:
            for task in self._clients:
                task.cancel()
            await self._tasks.__aexit__(kind, error, trace)

    async def close(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Takes no new connections; requests under way have so long to finish.

        A second call waits too. Idle clients are cut at once.
        """
        self._closing = True
        for server in self._servers:
            server.close()
        self.discard()
        for task, client in self._clients.items():
            client.last = True
            if client.idle:
                task.cancel()
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=grace_seconds)
        for task in self._clients:
            task.cancel()

    def discard(self) -> None:
        """Closes the listeners and removes the files of Unix sockets."""
        for listener in self._listeners:
            if isinstance(listener, UnixListener):
                listener.remove()
                listener.sock.close()
            else:
                listener.close()
        self._listeners = []

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock: socket.socket = writer.get_extra_info("socket")
        peer = peer_of(sock)
        why = self._why_not(peer)
        if why is not None:
            # once for a flood: the next line comes after a client that was served
            logger.log(
                logging.DEBUG if self._refusing else logging.WARNING,
                "%s: refused %s: %s",
                self.name,
                peer,
                why,
            )
            self._refusing = True
            self._refuse(why, reader, writer)
            return
        self._refusing = False
        client = ClientConnection(reader, writer, peer, self._routes, self._limits)
        task = self._tasks.create_task(self._serve(client, writer), name=f"{self.name} {peer}")
        self._clients[task] = client
        task.add_done_callback(self._clients.pop)

    def _refuse(self, why: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing or self._refusals >= self._limits.connections:
            writer.transport.abort()
            return
        self._refusals += 1
        self._tasks.create_task(self._say_no(why, reader, writer), name=f"{self.name} refusal")

    async def _say_no(
        self, why: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            writer.write(_REFUSAL.format(why).encode())
            with contextlib.suppress(OSError, TimeoutError):
                await linger(reader, writer)
        finally:
            self._refusals -= 1
            writer.transport.abort()

    def _why_not(self, peer: Peer) -> str | None:
        if self._closing or len(self._clients) >= self._limits.connections:
            return "503 Service Unavailable"
        if peer.over_unix and self._allow is not None and not self._allow(peer):
            return "403 Forbidden"
        return None

    async def _serve(self, client: ClientConnection, writer: asyncio.StreamWriter) -> None:
        try:
            await client.serve()
        except Exception:  # a fault of ours must not end the other clients
            logger.exception("%s: client %s", self.name, client.peer)
        finally:
            writer.close()
            try:
                async with asyncio.timeout(self._limits.write_seconds):
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                pass
            finally:
                # does nothing when it is closed; else what the client does not take is dropped
                with contextlib.suppress(Exception):
                    writer.transport.abort()


def _address(listener: socket.socket | UnixListener) -> str:
    if isinstance(listener, UnixListener):
        return str(listener.path)
    return format_host_port(*listener.getsockname()[:2])
