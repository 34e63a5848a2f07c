"""One JSON request after the other to the Kubernetes API, over kept connections.

Every request has a deadline, the answer a size limit, and the rate a bound, as client-go has it: so
many at once, so many a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

import h11
import msgspec

from nodenet.kube.access import Access, NoAccess
from nodenet.kube.errors import ApiRefused, ApiUnreachable

#: For a whole request, its wait for its turn not counted.
REQUEST_SECONDS: Final = 10.0
#: Connections kept for the next request.
MAX_IDLE: Final = 4
#: Requests under way at a time; the others wait.
MAX_AT_ONCE: Final = 16
#: Of an answer: ten thousand leases have some 10 MB.
MAX_ANSWER_BYTES: Final = 64 << 20
_READ_BYTES: Final = 64 << 10

Json = dict[str, Any]


class ApiClient:
    """See the module. An async context manager: leaving it closes the connections.

    ``qps`` and ``burst`` bound the rate; 0 means none.
    """

    def __init__(self, access: Access, *, qps: float = 0.0, burst: int = 0) -> None:
        self.access = access
        self._idle: list[_Line] = []
        self._at_once = asyncio.Semaphore(MAX_AT_ONCE)
        self._rate = _Rate(qps, burst)
        self._stamp: tuple[object, ...] = ()
        self._context: ssl.SSLContext | None = None
        self._token: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        idle, self._idle = self._idle, []
        for line in idle:
            await line.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """The JSON of the answer. ApiRefused, ApiUnreachable."""
        await self._rate.turn()
        async with self._at_once:
            what = f"kubernetes API {self.access}: {method} {path}"
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    status, raw = await self._exchange(method, path, body, query)
            except TimeoutError:
                raise ApiUnreachable(f"{what}: no answer within {REQUEST_SECONDS:g} s") from None
            except (OSError, h11.ProtocolError, ValueError, NoAccess) as error:
                # ValueError: what was configured cannot be a header, a host or a port
                raise ApiUnreachable(f"{what}: {_reason(error)}") from error
        return _answer(what, status, raw)

    async def _exchange(
        self, method: str, path: str, body: Json | None, query: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        target = self.access.path + path + (f"?{urlencode(query)}" if query else "")
        raw = b"" if body is None else msgspec.json.encode(body)
        fresh = await self._refresh()
        while True:
            kept = self._idle.pop() if self._idle else None
            if kept is not None and (kept.context is not fresh or kept.access != self.access):
                await kept.close()
                continue
            line = kept or await self._connect()
            try:
                answer = await line.exchange(method, target, self._headers(raw), raw)
            except (OSError, h11.RemoteProtocolError):
                await line.close()
                # the server closes kept connections when it likes: that is no failure
                if kept is None or line.answered:
                    raise
                continue
            except BaseException:
                await line.close()
                raise
            if line.reusable and len(self._idle) < MAX_IDLE:
                self._idle.append(line)
            else:
                await line.close()
            return answer

    async def _refresh(self) -> ssl.SSLContext | None:
        """The TLS and the token, from the files as they are now."""
        stamp = await asyncio.to_thread(_stamp, self.access)
        if stamp != self._stamp or not self._stamp:
            if self._stamp:
                self.access = await asyncio.to_thread(self.access.current)
            self._context = await asyncio.to_thread(self.access.context)
            self._token = await asyncio.to_thread(self.access.bearer)
            self._stamp = stamp
        return self._context

    async def _connect(self) -> _Line:
        access = self.access
        reader, writer = await asyncio.open_connection(
            access.host,
            access.port,
            ssl=self._context,
            server_hostname=(access.server_name or access.host) if access.secure else None,
        )
        return _Line(reader, writer, access, self._context)

    def _headers(self, raw: bytes) -> list[tuple[str, str]]:
        headers = [
            ("Host", str(self.access)),
            ("Accept", "application/json"),
            ("User-Agent", "nodenet"),
            ("Content-Length", str(len(raw))),
        ]
        if raw:
            headers.append(("Content-Type", "application/json"))
        if self._token:
            headers.append(("Authorization", f"Bearer {self._token}"))
        return headers


class _Stale(OSError):
    """The server closed the connection before it answered."""

    def __init__(self) -> None:
        super().__init__("the connection was closed without an answer")


class _Line:
    """One connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        access: Access,
        context: ssl.SSLContext | None,
    ) -> None:
        self.access = access
        self.context = context
        self.reusable = False
        self.answered = False
        """Whether a byte of the answer was there: the request must not be repeated."""
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    async def exchange(
        self, method: str, target: str, headers: list[tuple[str, str]], raw: bytes
    ) -> tuple[int, bytes]:
        http, writer = self._http, self._writer
        self.answered = False
        out = http.send(h11.Request(method=method, target=target, headers=headers)) or b""
        if raw:
            out += http.send(h11.Data(data=raw)) or b""
        writer.write(out + (http.send(h11.EndOfMessage()) or b""))
        await writer.drain()
        status, parts, size = 0, [], 0
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                got = await self._reader.read(_READ_BYTES)
                if not got and not self.answered:
                    raise _Stale
                self.answered = True
                http.receive_data(got)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
                if size > MAX_ANSWER_BYTES:
                    raise OSError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise OSError("the connection was closed inside the answer")
        self.reusable = http.our_state is h11.DONE and http.their_state is h11.DONE
        if self.reusable:
            http.start_next_cycle()
        return status, b"".join(parts)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()


class _Rate:
    """A bucket of ``burst`` requests that fills by ``qps`` a second."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = max(burst, 1)
        self._tokens = float(self._burst)
        self._at = 0.0

    async def turn(self) -> None:
        if not self._qps:
            return
        now = asyncio.get_running_loop().time()
        filled = self._tokens + (now - self._at) * self._qps
        self._tokens = min(float(self._burst), filled) - 1.0
        self._at = now
        if self._tokens < 0:
            # taken already, so that those who come later wait longer
            try:
                await asyncio.sleep(-self._tokens / self._qps)
            except asyncio.CancelledError:
                self._tokens += 1.0
                raise


def _answer(what: str, status: int, raw: bytes) -> Json:
    try:
        found = msgspec.json.decode(raw) if raw else {}
    except msgspec.DecodeError as error:
        found = None
        if status < 300:
            raise ApiUnreachable(f"{what}: the answer is no JSON: {error}") from error
    body: Json = found if isinstance(found, dict) else {}
    if status >= 300:
        text = str(body.get("message", ""))[:500]
        raise ApiRefused(what, status, str(body.get("reason", "")), text)
    return body


def _stamp(access: Access) -> tuple[object, ...]:
    """What changes when a file does; a file that is not there fails where it is read."""
    found: list[object] = ["."]
    for path in access.files():
        with contextlib.suppress(OSError):
            seen = path.stat()
            found.append((path, seen.st_mtime_ns, seen.st_ino, seen.st_size))
    return tuple(found)


def _reason(error: Exception) -> str:
    if isinstance(error, NoAccess):
        return error.message
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"x509 {error.verify_message}"
    strerror = getattr(error, "strerror", None)
    return (strerror or str(error) or type(error).__name__).lower()
