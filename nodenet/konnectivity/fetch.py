"""One HTTP request through a tunnel, for `nodenet konnectivity curl`."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import h11

from nodenet.endpoint import format_host_port
from nodenet.errors import UsageError
from nodenet.konnectivity.client import Mode, Server, Stream, TunnelLost, dial
from nodenet.konnectivity.tls_stream import TlsStream

_PORTS: Final = {"http": 80, "https": 443}
_READ_BYTES: Final = 256 * 1024


class NoHttp(TunnelLost):
    """What came back is no HTTP, or not all of it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """Where a request goes."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def address(self) -> str:
        """What is dialled."""
        return format_host_port(self.host, self.port)


def parse_url(text: str) -> Url:
    """``http://`` or ``https://``; without either http is meant. UsageError."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"not a URL: {text}: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UsageError(f"not a URL: {text}", hint="e.g. https://10.0.0.5:10250/healthz")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or not target.isprintable() or " " in target:
        raise UsageError(f"not a URL: {text}", hint="escape what is not ASCII as %XX")
    return Url(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port if port is not None else _PORTS[parts.scheme],
        target=target,
    )


@dataclass(slots=True, kw_only=True)
class Answer:
    """An answer's head, and how long it all took."""

    status: int
    reason: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body_bytes: int = 0
    dial_ms: float = 0.0
    first_byte_ms: float = 0.0
    total_ms: float = 0.0


async def fetch(
    server: Server,
    url: Url,
    *,
    mode: Mode,
    write: Callable[[bytes], None],
    on_head: Callable[[Answer], None] | None = None,
    method: str = "GET",
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    context: ssl.SSLContext | None = None,
    timeout: float,
) -> Answer:
    """Asks and hands the body on, piece by piece. ``context`` is for https.

    ``timeout`` in seconds is for the dial and for each wait after it. ProxyUnreachable, DialFailed,
    TunnelLost, NoHttp.
    """
    began = time.monotonic()
    stream: Stream = await dial(server, url.address, mode=mode, timeout=timeout)
    dialled = time.monotonic()
    try:
        if url.scheme == "https":
            tls = TlsStream(stream, context or ssl.create_default_context(), url.host)
            async with asyncio.timeout(timeout):
                await tls.handshake()
            stream = tls
        http = h11.Connection(h11.CLIENT)
        await _ask(http, stream, url, method, headers, body, timeout)
        answer = await _head(http, stream, timeout)
        answer.dial_ms = _ms(dialled - began)
        answer.first_byte_ms = _ms(time.monotonic() - began)
        if on_head is not None:
            on_head(answer)
        while isinstance(event := await _next(http, stream, timeout), h11.Data):
            answer.body_bytes += len(event.data)
            write(bytes(event.data))
        answer.total_ms = _ms(time.monotonic() - began)
        return answer
    except TimeoutError as error:
        raise TunnelLost(f"{url.address}: nothing came for {timeout:g} s") from error
    except h11.RemoteProtocolError as error:
        raise NoHttp(f"{url.address}: not an answer in HTTP: {error}") from error
    finally:
        await stream.close()


async def _ask(
    http: h11.Connection,
    stream: Stream,
    url: Url,
    method: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    timeout: float,
) -> None:
    given = {name.lower() for name, _ in headers}
    default = [("Host", url.address), ("User-Agent", "nodenet"), ("Accept", "*/*")]
    default.append(("Connection", "close"))
    if body:
        default.append(("Content-Length", str(len(body))))
    sent = [*((n, v) for n, v in default if n.lower() not in given), *headers]
    try:
        request = h11.Request(method=method, target=url.target, headers=sent)
        raw = http.send(request) or b""
        raw += (http.send(h11.Data(data=body)) or b"") if body else b""
        raw += http.send(h11.EndOfMessage()) or b""
    except h11.LocalProtocolError as error:
        raise UsageError(f"not a request: {error}") from error
    async with asyncio.timeout(timeout):
        await stream.write(raw)


async def _head(http: h11.Connection, stream: Stream, timeout: float) -> Answer:
    while True:
        event = await _next(http, stream, timeout)
        if isinstance(event, h11.Response):
            return Answer(
                status=event.status_code,
                reason=event.reason.decode("latin-1"),
                headers=[(n.decode("latin-1"), v.decode("latin-1")) for n, v in event.headers],
            )
        if not isinstance(event, h11.InformationalResponse):
            raise NoHttp("the remote closed the connection without an answer")


async def _next(http: h11.Connection, stream: Stream, timeout: float) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        async with asyncio.timeout(timeout):
            http.receive_data(await stream.read(_READ_BYTES))
    return event


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
