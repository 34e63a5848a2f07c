"""A tunnel by HTTP CONNECT: a socket of its own, half-close included."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

from nodenet.konnectivity.client import (
    DialFailed,
    ProxyUnreachable,
    Server,
    TunnelLost,
    explain,
    widen,
    wrong_door,
)

#: Of an answer's header block, as kube-apiserver reads it, and of an error's text.
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_ERROR_BYTES: Final = 4096
#: For what was written to leave when a tunnel is closed.
CLOSE_SECONDS: Final = 10.0


class ConnectStream:
    """See `client.Stream`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, size: int = 65_536) -> bytes:
        """See `client.Stream`."""
        try:
            return await self._reader.read(size)
        except OSError as error:
            raise TunnelLost(f"tunnel lost: {explain(error)}") from error

    async def write(self, data: bytes) -> None:
        """See `client.Stream`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise TunnelLost(f"tunnel lost: {explain(error)}") from error

    async def end(self) -> None:
        """See `client.Stream`. Over TLS there is no such thing: it does nothing."""
        if self._writer.can_write_eof():
            with contextlib.suppress(OSError):
                self._writer.write_eof()

    async def close(self) -> None:
        """See `client.Stream`."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def connect(server: Server, address: str, *, timeout: float) -> ConnectStream:
    """Dials ``address`` through a server in mode ``http-connect``. See `client.dial`."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await _open(server)
            # kube-apiserver sends the same Host; servers look at the target alone
            head = f"CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            writer.write(head.encode())
            await writer.drain()
            await _answer(reader, server, address)
            return ConnectStream(reader, writer)
    except BaseException as error:
        if writer is not None:
            writer.transport.abort()
        if isinstance(error, TimeoutError) and writer is not None:
            raise DialFailed(address, f"no answer within {timeout:g} s") from error
        if isinstance(error, OSError | ValueError):
            hint = None if writer is None else wrong_door("http-connect", server)
            raise ProxyUnreachable(str(server), explain(error), hint=hint) from error
        raise


async def _open(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if server.path is not None:
        reader, writer = await asyncio.open_unix_connection(str(server.path))
        widen(writer.transport)
        return reader, writer
    assert server.tls is not None
    context = await asyncio.to_thread(server.tls.context)
    name = server.tls.server_name or server.host
    return await asyncio.open_connection(
        server.host, server.port, ssl=context, server_hostname=name
    )


async def _answer(reader: asyncio.StreamReader, server: Server, address: str) -> None:
    """Reads the answer; returns when it is 200. DialFailed, ProxyUnreachable."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        hint = wrong_door("http-connect", server)
        raise ProxyUnreachable(str(server), "an answer without end", hint=hint) from None
    except asyncio.IncompleteReadError as error:
        text = "closed the connection without an answer" if not error.partial else "is no HTTP"
        hint = wrong_door("http-connect", server)
        raise ProxyUnreachable(str(server), text, hint=hint) from None
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        hint = wrong_door("http-connect", server)
        raise ProxyUnreachable(str(server), "is no HTTP", hint=hint)
    if words[1] == b"200":
        return
    body = b""
    with contextlib.suppress(OSError):
        while len(body) < MAX_ERROR_BYTES and (part := await reader.read(MAX_ERROR_BYTES)):
            body += part
    reason = " ".join(body[:MAX_ERROR_BYTES].decode(errors="replace").split())
    status = int(words[1][:3])
    raise DialFailed(address, reason or words[-1].decode(errors="replace"), status=status)
