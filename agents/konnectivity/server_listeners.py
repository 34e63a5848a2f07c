"""Listening sockets whose TLS follows its files, and the choice between gRPC and CONNECT.

A rotated certificate, key or CA is used by the next connection; those that are open go on with what
they had.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from nodenet.agents.konnectivity.poller_transport import Acceptor
from nodenet.agents.konnectivity.server_config import TlsFiles
from nodenet.agents.konnectivity.server_frontends import ConnectProtocol
from nodenet.agents.konnectivity.tls_opening import serve_tls
from nodenet.agents.konnectivity.tls_transport import HANDSHAKE_SECONDS
from nodenet.agents.konnectivity.unix_transport import serve_unix
from nodenet.agents.ztunnel.poller import Poller
from nodenet.httpd.sockets import ANYWHERE, Take, UnixListener, open_tcp, open_unix
from nodenet.konnectivity.tls_files import TlsUnusable, load_authorities, load_pair
from nodenet.rpc import read_buffer
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import Buffer
from nodenet.tls.context import Context, Side, untimely
from nodenet.tls.errors import CredentialsUnusable

#: Seconds between two looks at the files. The kubelet itself takes a minute to show a new secret.
RELOAD_SECONDS: Final = 5.0
#: Of TCP, for peers that have none of their own: a peer is lost after a minute.
KEEPALIVE_IDLE_SECONDS: Final = 30
KEEPALIVE_PROBE_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 3
#: Connections the kernel keeps for us while a turn of the loop lasts.
BACKLOG: Final = 4096
_HTTP2: Final = b"PRI "

Factory = Callable[[], asyncio.BaseProtocol]

logger = logging.getLogger(__name__)


def make_context(
    files: TlsFiles, *, alpn: list[str], ciphers: tuple[str, ...], least: ssl.TLSVersion
) -> Context:
    """The TLS of new connections, from the files as they are. Blocking. TlsUnusable."""
    context = Context(Side.SERVER, alpn=alpn, least=least, ciphers=ciphers)
    load_pair(context, files.cert, files.key)
    if files.ca is not None:
        load_authorities(context, files.ca)
    return context


def digest(files: TlsFiles) -> bytes:
    """What changes when one of the files does. Blocking. TlsUnusable."""
    made = hashlib.sha256()
    for path in filter(None, (files.cert, files.key, files.ca)):
        try:
            made.update(path.read_bytes() + b"\0")
        except OSError as error:
            raise TlsUnusable(path, (error.strerror or str(error)).lower()) from error
    return made.digest()


class Listener:
    """One address; every connection gets a protocol of ``factory``. Owns the sockets.

    A Unix socket and TLS are served on ``poller``, plain TCP by the loop. ``direct`` is for few
    connections that live long, see `Poller.add_direct`.
    """

    def __init__(
        self,
        name: str,
        sockets: list[socket.socket] | UnixListener,
        factory: Factory,
        poller: Poller,
        *,
        tls: TlsFiles | None = None,
        direct: bool = False,
        alpn: list[str] | None = None,
        ciphers: tuple[str, ...] = (),
        least: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
    ) -> None:
        self.name = name
        self._unix = sockets if isinstance(sockets, UnixListener) else None
        self._sockets = [sockets.sock] if isinstance(sockets, UnixListener) else sockets
        self._factory = factory
        self._poller = poller
        self._tls = tls
        self._direct = direct
        self._alpn = alpn or []
        self._ciphers = ciphers
        self._least = least
        self._servers: list[asyncio.AbstractServer | Acceptor] = []
        self._closed = False
        self._digest = b""
        self._context: Context | None = None

    @property
    def port(self) -> int:
        """Of TCP."""
        return int(self._sockets[0].getsockname()[1])

    async def prepare(self) -> None:
        """Reads the files. TlsUnusable."""
        if self._tls is not None:
            self._digest, self._context, wrong = await asyncio.to_thread(self._load, self._tls)
            self._warn(wrong)

    async def start(self) -> None:
        """Accepts from now on."""
        await self._serve(self._context)

    async def follow_files(self) -> None:
        """Takes over changed files, for ever. Of a Unix socket, says when it is ours no more."""
        if self._unix is not None:
            await self._look_after(self._unix)
        tls = self._tls
        if tls is None:
            return
        said = ""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                if await asyncio.to_thread(digest, tls) == self._digest:
                    continue
                self._digest, context, wrong = await asyncio.to_thread(self._load, tls)
            except TlsUnusable as error:
                # the files of a rotation change one after the other: once is no news
                if said == error.message:
                    logger.warning("%s: %s; the old one stays in use", self.name, error.message)
                said = error.message
                continue
            said = ""
            try:
                await self._serve(context)
            except OSError as error:
                # no descriptor is free: the old one stays in use, and the files are read again
                self._digest = b""
                logger.warning("%s: cannot take new certificates: %s", self.name, error)
                continue
            logger.info("%s: certificates of %s are in use", self.name, tls.cert)
            self._warn(wrong)

    async def _look_after(self, unix: UnixListener) -> None:
        while not self._closed and unix.in_place():
            await asyncio.sleep(RELOAD_SECONDS)
        if not self._closed:
            logger.warning(
                "%s: %s is not ours any more: somebody has replaced or removed it, and no new "
                "connections come here",
                self.name,
                unix.path,
            )

    def _load(self, tls: TlsFiles) -> tuple[bytes, Context, str | None]:
        # before the context: a change in between is then seen as one more
        before = digest(tls)
        made = make_context(tls, alpn=self._alpn, ciphers=self._ciphers, least=self._least)
        try:
            wrong = untimely(tls.cert.read_bytes(), datetime.now(UTC))
        except (OSError, CredentialsUnusable):
            wrong = None  # changed since: it is read again
        return before, made, f"{tls.cert}: {wrong}" if wrong is not None else None

    def _warn(self, wrong: str | None) -> None:
        """Says that peers will refuse the certificate. It is shown all the same, as upstream's."""
        if wrong is not None:
            logger.warning("%s: %s; peers refuse it", self.name, wrong)

    async def _serve(self, context: Context | None) -> None:
        loop = asyncio.get_running_loop()
        fresh: list[asyncio.AbstractServer | Acceptor] = []
        try:
            for sock in list(self._sockets):
                # of its own, so that closing the old server closes nothing of the new one
                own = sock.dup()
                fresh.append(await self._server(loop, own, context))
        except BaseException:
            for server in fresh:
                server.close()
            raise
        # closed meanwhile: nothing is accepted any more
        if self._closed:
            fresh, self._servers = [], [*self._servers, *fresh]
        old, self._servers = self._servers, fresh
        for server in old:
            server.close()

    async def _server(
        self, loop: asyncio.AbstractEventLoop, own: socket.socket, context: Context | None
    ) -> asyncio.AbstractServer | Acceptor:
        try:
            if context is None and self._unix is None:
                return await loop.create_server(self._factory, sock=own, backlog=BACKLOG)
            own.listen(BACKLOG)
            if context is None:
                return serve_unix(self._poller, own, self._factory)
            return serve_tls(
                self._poller, own, self._factory, context, self.name, direct=self._direct
            )
        except BaseException:
            own.close()
            raise

    def close(self) -> None:
        """Accepts no more; connections go on."""
        self._closed = True
        for server in self._servers:
            server.close()
        self._servers = []
        if self._unix is not None:
            self._unix.remove()
        for sock in self._sockets:
            sock.close()
        self._sockets = []


def open_listening(host: str, port: int, option: str) -> list[socket.socket]:
    """Sockets for a flag's address, empty for all. BindError, UsageError.

    What they accept asks a silent peer for a sign of life: a CONNECT client that vanished without
    a FIN would keep its tunnel for ever.
    """
    opened = open_tcp(host or ANYWHERE, port, option)
    for sock in opened:
        # accepted sockets have what their listener had (tcp(7))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    return opened


def open_frontend_socket(path: Path, *, delete: bool) -> UnixListener:
    """The Unix socket for frontends, mode 0660; its directory must exist. BindError, NotPermitted.

    ``delete`` takes the place of another socket, as upstream's does, even when somebody answers
    there: a server of upstream's that drains still does. One of ours does not, so that is said: it
    may be a second server by mistake.
    """
    option = "give another --uds-name"
    if not delete:
        option += ", or --delete-existing-uds-file"
    found = open_unix(path, option, take=Take.ANY if delete else Take.NOTHING, make_directory=False)
    if found.displaced is not None:
        who = f"was served by pid {found.displaced}" if found.displaced else "may be somebody's"
        logger.warning("socket %s %s; new frontends come here now", path, who)
    return found


class EitherProtocol(asyncio.BufferedProtocol):
    """Becomes a protocol of gRPC or of CONNECT by the first bytes of the connection."""

    def __init__(
        self, grpc: Callable[[], RpcProtocol], connect: Callable[[], ConnectProtocol]
    ) -> None:
        self._grpc = grpc
        self._connect = connect
        self._buffer = read_buffer.shared()
        self._start = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.BaseProtocol."""
        self._transport = cast(asyncio.Transport, transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_SECONDS, self._transport.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return self._buffer.get()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self.data_received(self._buffer.filled(nbytes))

    def data_received(self, data: Buffer) -> None:
        """Bytes of the peer, which may be kept."""
        transport = self._transport
        assert transport is not None and self._timer is not None
        self._start += data
        if len(self._start) < len(_HTTP2) and _HTTP2.startswith(self._start):
            return
        self._timer.cancel()
        found = (self._grpc if self._start.startswith(_HTTP2) else self._connect)()
        transport.set_protocol(found)
        found.connection_made(transport)
        found.data_received(self._start)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        if self._timer is not None:
            self._timer.cancel()
