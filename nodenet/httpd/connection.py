"""One connection of a client: requests in, answers out, every wait with its deadline.

h11 knows the protocol; this module knows the streams and the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final
from urllib.parse import parse_qsl, unquote

import h11

from nodenet.errors import NodenetError
from nodenet.httpd.compression import LEAST_BYTES, accepts_gzip, gzipped
from nodenet.httpd.messages import HttpError, Peer, Request, Response, text
from nodenet.httpd.routes import Routes

_READ_BYTES: Final = 64 * 1024
#: For a refused client to notice before its connection is closed.
_LINGER_SECONDS: Final = 1.0
#: Status of a handler's NodenetError by the exit code it would have on the command line.
_STATUS: Final = {2: 400, 3: 501, 4: 404}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may cost."""

    header_seconds: float = 2.0
    """For a whole request header, from its first byte or from the start of the connection
    (ztunnel: src/hyper_util.rs)."""
    header_bytes: int = 8192
    """Of request line and headers (same source)."""
    body_seconds: float = 10.0
    body_bytes: int = 1 << 20
    idle_seconds: float = 60.0
    """Between an answer and the next request."""
    write_seconds: float = 10.0
    """For a client to take what is waiting for it: a reader that stops is cut."""
    connections: int = 64
    """At a time; the next ones get 503."""


class _Closed(Exception):
    """The connection is over, without anybody to tell."""


class ClientConnection:
    """Serves one client until either side ends it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
        routes: Routes,
        limits: Limits,
    ) -> None:
        self.peer = peer
        self.idle = False
        """Whether no request is under way: it may be ended without anybody missing an answer."""
        self.last = False
        """Set by the server: no further request after the one under way."""
        self._reader = reader
        self._writer = writer
        self._routes = routes
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._served = False

    async def serve(self) -> None:
        """Answers requests one after the other. Raises nothing but CancelledError."""
        try:
            while await self._one_request():
                self._http.start_next_cycle()
        except (_Closed, OSError, TimeoutError) as error:
            logger.debug("client %s: %s", self.peer, error or type(error).__name__)
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, f"{error}\n")

    async def _one_request(self) -> bool:
        """Takes and answers one request; whether another may follow."""
        try:
            head = await self._head()
            if head is None:
                return False
            body = await self._body()
        except HttpError as error:
            await self._refuse(error.status, error.text)
            return False
        request = _request(head, body, self.peer)
        response = await self._answered(request)
        await self._send(request, response)
        return self._http.our_state is h11.DONE and not self.last

    async def _head(self) -> h11.Request | None:
        """The next request's head; None when there is none to come."""
        limits = self._limits
        self.idle = True
        try:
            event = self._next_event()
            # only who has asked before may be silent for long
            if event is h11.NEED_DATA and self._served and not self._http.trailing_data[0]:
                async with asyncio.timeout(limits.idle_seconds):
                    event = await self._more()
            async with asyncio.timeout(limits.header_seconds):
                while event is h11.NEED_DATA:
                    event = await self._more()
        finally:
            self.idle = False
        self._served = True
        if not isinstance(event, h11.Request):
            return None
        # h11 limits only a head that has not arrived whole
        if _head_size(event) > limits.header_bytes:
            raise HttpError(431, f"header of more than {limits.header_bytes} bytes\n")
        return event

    async def _more(self) -> object:
        self._http.receive_data(await self._reader.read(_READ_BYTES))
        return self._next_event()

    def _next_event(self) -> object:
        return self._http.next_event()

    async def _body(self) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._whole_body()
        except TimeoutError as error:
            raise HttpError(408, "request body timeout\n") from error

    async def _whole_body(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._write(self._http.send(go_on))
        while True:
            event = self._next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
                if size > self._limits.body_bytes:
                    raise HttpError(413, f"body of more than {self._limits.body_bytes} bytes\n")
            elif isinstance(event, h11.EndOfMessage):
                return b"".join(parts)
            else:
                raise _Closed("gone in the middle of a request")

    async def _answered(self, request: Request) -> Response:
        try:
            handler = self._routes.find(request.method, request.path)
            answer = handler(request)
            if inspect.isawaitable(answer):
                answer = await answer
            return answer
        except HttpError as error:
            return text(error.text, error.status)
        except NodenetError as error:
            status = _STATUS.get(error.exit_code, 500)
            if status == 500:
                logger.warning("%s %s: %s", request.method, request.path, error.line())
            return text(f"{error.line()}\n", status)
        except Exception:
            logger.exception("%s %s for %s failed", request.method, request.path, self.peer)
            return text("internal error\n", 500)

    async def _send(self, request: Request, response: Response) -> None:
        body, headers = response.body, {"Content-Type": response.content_type, **response.headers}
        if response.compress:
            headers["Vary"] = "Accept-Encoding"
            wanted = accepts_gzip(request.header("accept-encoding"))
            if wanted and not (isinstance(body, bytes) and len(body) < LEAST_BYTES):
                body = gzipped(body)
                headers["Content-Encoding"] = "gzip"
        if isinstance(body, bytes):
            headers["Content-Length"] = str(len(body))
        head = self._head_bytes(response.status, headers)
        if request.method == "HEAD":
            await self._write(head + self._end())
        elif isinstance(body, bytes):
            await self._write(head + self._data(body) + self._end())
        else:
            await self._write(head)
            await self._stream(body, request)
            await self._write(self._end())

    async def _stream(self, body: AsyncIterator[bytes], request: Request) -> None:
        try:
            async for piece in body:
                await self._write(self._data(piece))
        except (OSError, TimeoutError, _Closed):
            raise
        except Exception as error:
            # the status is out: an answer that ends too early is all that can still be said
            logger.exception("%s %s for %s broke off", request.method, request.path, self.peer)
            self._writer.transport.abort()
            raise _Closed("the answer broke off") from error

    async def _refuse(self, status: int, why: str) -> None:
        """A last answer to a request that could not be read."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        raw = why.encode()
        headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(raw))}
        with contextlib.suppress(OSError, TimeoutError):
            head = self._head_bytes(status, {**headers, "Connection": "close"})
            await self._write(head + self._data(raw) + self._end())
            await linger(self._reader, self._writer)

    def _head_bytes(self, status: int, headers: dict[str, str]) -> bytes:
        if self.last:
            headers["Connection"] = "close"
        fields = [("Date", formatdate(usegmt=True)), *headers.items()]
        return self._http.send(h11.Response(status_code=status, headers=fields)) or b""

    def _data(self, raw: bytes) -> bytes:
        return (self._http.send(h11.Data(data=raw)) or b"") if raw else b""

    def _end(self) -> bytes:
        return self._http.send(h11.EndOfMessage()) or b""

    async def _write(self, raw: bytes | None) -> None:
        if raw:
            self._writer.write(raw)
            async with asyncio.timeout(self._limits.write_seconds):
                await self._writer.drain()


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ends our side and lets the client notice. OSError, TimeoutError.

    Closing with unread bytes would send a reset that overtakes the answer.
    """
    async with asyncio.timeout(_LINGER_SECONDS):
        await writer.drain()
        writer.write_eof()
        while await reader.read(_READ_BYTES):
            pass


def _head_size(head: h11.Request) -> int:
    fields = sum(len(name) + len(value) + 4 for name, value in head.headers)
    return len(head.method) + len(head.target) + len("  HTTP/1.1\r\n\r\n") + fields


def _request(head: h11.Request, body: bytes, peer: Peer) -> Request:
    path, _, query = head.target.decode("latin-1").partition("?")
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Request(
        method=head.method.decode("latin-1"),
        path=unquote(path),
        query=dict(parse_qsl(query, keep_blank_values=True)),
        headers=headers,
        body=body,
        peer=peer,
    )
