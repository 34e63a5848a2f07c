"""TLS inside a tunnel."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Final, Self

from nodenet.konnectivity.client import Stream, TunnelLost

_READ_BYTES: Final = 64 * 1024


#: OpenSSL's reasons for bytes that are no TLS at all; newer ones have the second.
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})


class TlsFailed(TunnelLost):
    """The handshake with the remote failed, or what it sends cannot be decrypted.

    ``no_tls``: what it speaks is no TLS. ``unverified``: its certificate is not believed.
    """

    def __init__(
        self, host: str, reason: str, *, no_tls: bool = False, unverified: bool = False
    ) -> None:
        super().__init__(f"TLS with {host}: {reason}")
        self.no_tls = no_tls
        self.unverified = unverified


class TlsStream:
    """A `client.Stream` over another one. One reader and one writer at a time, not both at once
    before `handshake` has returned."""

    def __init__(self, inner: Stream, context: ssl.SSLContext, server_name: str) -> None:
        self._inner = inner
        self._name = server_name
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=False, server_hostname=server_name
        )

    async def handshake(self) -> None:
        """Once, before everything else. TlsFailed."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise TlsFailed(self._name, "it closed the connection") from None
            except ssl.SSLError as error:
                await self._flush()
                raise self._failed(error) from error
            else:
                await self._flush()
                return

    async def read(self, size: int = 65_536) -> bytes:
        """See `client.Stream`."""
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                if not await self._fill():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise self._failed(error) from error

    async def write(self, data: bytes) -> None:
        """See `client.Stream`."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        await self._flush()

    async def end(self) -> None:
        """See `client.Stream`: does nothing, the remote may still answer."""

    async def close(self) -> None:
        """See `client.Stream`."""
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _failed(self, error: ssl.SSLError) -> TlsFailed:
        if isinstance(error, ssl.SSLCertVerificationError):
            said = f"its certificate: {error.verify_message}"
            return TlsFailed(self._name, said, unverified=True)
        if error.reason in _NO_TLS:
            return TlsFailed(self._name, "what it speaks is no TLS", no_tls=True)
        reason = (error.reason or str(error)).lower().replace("_", " ")
        return TlsFailed(self._name, reason)

    async def _fill(self) -> bool:
        data = await self._inner.read(_READ_BYTES)
        if data:
            self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            await self._inner.write(data)
