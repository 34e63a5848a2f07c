"""Tunnels by gRPC: one call of ProxyService a tunnel, any number of them on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from nodenet.konnectivity import extensions
from nodenet.konnectivity.client import (
    DialFailed,
    ProxyUnreachable,
    Server,
    TunnelLost,
    explain,
    widen,
)
from nodenet.konnectivity.errors import MalformedPacket
from nodenet.konnectivity.extensions import Extensions
from nodenet.konnectivity.packets import (
    PROXY_METHOD,
    CloseDial,
    CloseRequest,
    CloseResponse,
    Data,
    DialRequest,
    DialResponse,
    HalfClose,
    Packet,
    data_pieces,
    data_prefix,
    data_span,
    pull_packet,
    push_packet,
)
from nodenet.rpc.aio import RpcProtocol
from nodenet.rpc.call import Buffer, Call, CallHandler
from nodenet.rpc.connection import Role
from nodenet.rpc.errors import CallOver
from nodenet.rpc.headers import Metadata
from nodenet.rpc.limits import Limits
from nodenet.rpc.status import Status

#: Bytes of one DATA; an upstream peer refuses messages of more than 4 MiB.
WRITE_BYTES: Final = 256 * 1024
#: Bytes that wait to be read before the server is held, and to be sent before a writer waits.
HELD_BYTES: Final = 1024 * 1024
#: For the CLOSE_RSP (konnectivity-client: CloseTimeout).
CLOSE_SECONDS: Final = 10.0
#: For the server to end the call after us, and the connection after that, before they are cut.
GOODBYE_SECONDS: Final = 1.0
#: Silence before a ping; upstream's frontend takes one in five minutes.
KEEPALIVE_SECONDS: Final = 300.0
#: The client needs no window of ours: each tunnel is a call, which has one.
_OFFER: Final = Extensions(half_close=True)


class Proxy:
    """A connection to a server. Tunnels outlive `close` by nothing."""

    def __init__(self, server: Server, protocol: _Protocol, lost: asyncio.Event) -> None:
        self._server = server
        self._protocol = protocol
        self._lost = lost

    @classmethod
    async def connect(cls, server: Server, *, timeout: float) -> Proxy:
        """Connects within ``timeout`` seconds. ProxyUnreachable."""
        loop = asyncio.get_running_loop()
        lost = asyncio.Event()
        name = server.host
        if server.tls is not None and server.tls.server_name:
            name = server.tls.server_name
        try:
            async with asyncio.timeout(timeout):
                if server.path is not None:
                    transport, protocol = await loop.create_unix_connection(
                        lambda: _protocol("localhost", lost, secure=False), str(server.path)
                    )
                    widen(transport)
                else:
                    assert server.tls is not None
                    context = await asyncio.to_thread(server.tls.context)
                    context.set_alpn_protocols(["h2"])
                    _, protocol = await loop.create_connection(
                        lambda: _protocol(str(server), lost, secure=True),
                        server.host,
                        server.port,
                        ssl=context,
                        server_hostname=name,
                    )
        except (OSError, ValueError) as error:
            raise ProxyUnreachable(str(server), explain(error)) from error
        return cls(server, protocol, lost)

    async def dial(self, address: str, *, timeout: float, own: bool = False) -> GrpcStream:
        """A tunnel to ``address``; with ``own`` this connection ends with it, or with its failure.

        Raises DialFailed, ProxyUnreachable when the connection is gone.
        """
        stream = GrpcStream(self if own else None, address)
        try:
            stream.call = self._protocol.connection.open(
                PROXY_METHOD, stream, ((extensions.KEY, _OFFER.text()),)
            )
        except CallOver as error:
            if own:
                await self.aclose()
            raise self._unreachable(error.message) from error
        try:
            async with asyncio.timeout(timeout):
                await stream.dialled(str(self._server))
        except TimeoutError as error:
            await stream.give_up()
            raise DialFailed(address, f"no answer within {timeout:.3g} s") from error
        except ProxyUnreachable as error:
            await stream.give_up()
            raise self._unreachable(error.reason) from self._protocol.refusal
        except BaseException:
            await stream.give_up()
            raise
        return stream

    def _unreachable(self, reason: str) -> ProxyUnreachable:
        """With what TLS said, where that was what ended the connection."""
        refusal = self._protocol.refusal
        return ProxyUnreachable(str(self._server), reason if refusal is None else explain(refusal))

    def close(self) -> None:
        """Ends the connection and every tunnel on it."""
        self._protocol.close()

    async def aclose(self) -> None:
        """As `close`, and waits until it has ended; it is cut after `GOODBYE_SECONDS`."""
        self._protocol.close()
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._lost.wait()
        finally:
            self._protocol.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(TimeoutError):
            await self.aclose()


class _Protocol(RpcProtocol):
    """Keeps what TLS said: with TLS 1.3 a client is refused when it is connected already."""

    refusal: ssl.SSLError | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        if isinstance(exc, ssl.SSLError):
            self.refusal = exc
        super().connection_lost(exc)


def _protocol(authority: str, lost: asyncio.Event, *, secure: bool) -> _Protocol:
    return _Protocol(
        Role.CLIENT,
        limits=Limits(stream_window=HELD_BYTES, keepalive_seconds=KEEPALIVE_SECONDS),
        authority=authority,
        secure=secure,
        on_lost=lambda _: lost.set(),
    )


class GrpcStream(CallHandler):
    """See `client.Stream`."""

    def __init__(self, owned: Proxy | None, address: str) -> None:
        self.call: Call
        self._owned = owned
        self._address = address
        self._random = random.getrandbits(63)
        self._connect_id = 0
        loop = asyncio.get_running_loop()
        self._dialled: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()
        """Done with the CLOSE_RSP, or when the call ends."""
        self._lost: str | None = None
        self._half_close = False
        self._ended = False
        """The remote has."""
        self._end_sent = self._close_sent = False
        self._call_over = asyncio.Event()
        self._inbox: deque[Buffer] = deque()
        self._inbox_bytes = 0
        self._readable = asyncio.Event()
        self._outbox: deque[tuple[bytes, ...]] = deque()
        """Messages, in their pieces."""
        self._outbox_bytes = 0
        self._writable = asyncio.Event()

    # -- the dial ---------------------------------------------------------------------------------

    async def dialled(self, server: str) -> None:
        """Sends the DIAL_REQ and waits for its answer."""
        self._push(DialRequest("tcp", self._address, self._random))
        await self._dialled
        if self._lost is not None and not self._connect_id:
            raise ProxyUnreachable(server, self._lost)

    async def give_up(self) -> None:
        """The dial is no longer wanted."""
        self._close_sent = True
        if not self.call.over:
            self._push(CloseDial(self._random))
            self.call.end()
        self._dialled.cancel()
        await self._release()

    # -- client.Stream ----------------------------------------------------------------------------

    async def read(self, size: int = 65_536) -> bytes:
        """See `client.Stream`."""
        while not self._inbox:
            if self._lost is not None:
                raise TunnelLost(f"tunnel to {self._address} lost: {self._lost}")
            if self._ended or self._close_sent:
                return b""
            self._readable.clear()
            await self._readable.wait()
        data = self._inbox.popleft()
        if len(data) > size:
            self._inbox.appendleft(data[size:])
            data = data[:size]
        self._inbox_bytes -= len(data)
        if self.call.paused and self._inbox_bytes < HELD_BYTES // 2:
            self.call.resume()
        return bytes(data)

    async def write(self, data: bytes) -> None:
        """See `client.Stream`."""
        if self._end_sent or self._close_sent:
            raise TunnelLost(f"tunnel to {self._address}: written to after its end")
        for at in range(0, len(data), WRITE_BYTES):
            while self._outbox_bytes + self.call.unsent > HELD_BYTES and not self._over.done():
                self._writable.clear()
                await self._writable.wait()
            if self._over.done():
                reason = self._lost or "the remote has closed it"
                raise TunnelLost(f"tunnel to {self._address} lost: {reason}")
            part = data[at : at + WRITE_BYTES]
            self._outbox.append((data_prefix(self._connect_id, len(part)), part))
            self._outbox_bytes += len(part)
            self.call.want()

    async def end(self) -> None:
        """See `client.Stream`."""
        if self._half_close and not self._end_sent:
            self._end_sent = True
            self._push(HalfClose(self._connect_id))

    async def close(self) -> None:
        """See `client.Stream`."""
        if not self._close_sent:
            self._close_sent = True
            self._readable.set()
            self.call.resume()  # the answer comes behind what was not read
            if not self._over.done():
                self._push(CloseRequest(self._connect_id))
                try:
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await asyncio.shield(self._over)
                except TimeoutError:
                    pass
            self.call.end()
        await self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- rpc.CallHandler --------------------------------------------------------------------------

    def answered(self, metadata: Metadata) -> None:
        """See `CallHandler`."""
        offered = next((value for name, value in metadata if name == extensions.KEY), None)
        self._half_close = extensions.parse(offered).half_close

    def received(self, message: bytes) -> None:
        """See `CallHandler`."""
        span = data_span(message)
        if span is not None:
            self._data(span.connect_id, message[span.start : span.end])
            return
        self._packet(message)

    def received_pieces(self, pieces: Sequence[Buffer]) -> None:
        """See `CallHandler`: payload is kept in the pieces it came in."""
        found = data_pieces(pieces)
        if found is None:
            self.received(b"".join(pieces))
            return
        for piece in found[1]:
            self._data(found[0], piece)

    def _packet(self, message: bytes) -> None:
        try:
            packet = pull_packet(message)
        except MalformedPacket as malformed:
            self._fail(malformed.message)
            self.call.cancel()
            self._finish()
            self._call_over.set()
            return
        match packet:
            case DialResponse(error, connect_id, number) if number == self._random:
                self._answer(error, connect_id)
            case CloseDial(number) if number == self._random and not self._connect_id:
                self._answer("the dial was given up", 0)
            case CloseResponse(error, connect_id) if connect_id == self._connect_id:
                self._close_response(error)
            case HalfClose(connect_id) if connect_id == self._connect_id:
                self._ended = True
                self._readable.set()
            case Data(connect_id, payload):
                self._data(connect_id, payload)
            case _:
                pass

    def closed(self, status: Status) -> None:
        """See `CallHandler`."""
        if not (self._ended or self._close_sent):
            self._fail(str(status))
        self._finish()
        self._call_over.set()

    def pull(self) -> Sequence[bytes] | None:
        """See `CallHandler`."""
        if not self._outbox:
            return None
        message = self._outbox.popleft()
        if len(message) > 1:
            self._outbox_bytes -= len(message[1])
            self._writable.set()
        return message

    # -- packets ----------------------------------------------------------------------------------

    def _answer(self, error: str, connect_id: int) -> None:
        if self._dialled.done():
            return
        if error or connect_id <= 0:
            failure = DialFailed(self._address, error or "the server gave no connection id")
            self._dialled.set_exception(failure)
        else:
            self._connect_id = connect_id
            self._dialled.set_result(None)

    def _data(self, connect_id: int, payload: Buffer) -> None:
        if connect_id != self._connect_id or self._close_sent or not payload:
            return
        self._inbox.append(payload)
        self._inbox_bytes += len(payload)
        if self._inbox_bytes > HELD_BYTES:
            self.call.pause()
        self._readable.set()

    def _close_response(self, error: str) -> None:
        self._ended = True
        if error and not self._close_sent:
            self._lost = error
        self._finish()

    async def _release(self) -> None:
        """Closes the connection that is this tunnel's own, once its last words are out."""
        if self._owned is None:
            return
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._call_over.wait()
        except TimeoutError:
            pass
        finally:
            self._owned.close()
        with contextlib.suppress(TimeoutError):
            await self._owned.aclose()

    def _fail(self, text: str) -> None:
        self._lost = self._lost or text

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
        if not self._dialled.done():
            self._dialled.set_result(None)
        self._readable.set()
        self._writable.set()

    def _push(self, packet: Packet) -> None:
        self._outbox.append((push_packet(packet),))
        self.call.want()
