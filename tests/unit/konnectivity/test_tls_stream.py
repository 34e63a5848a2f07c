"""TLS inside a tunnel: what is said when there is none."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from nodenet.konnectivity.tls_stream import TlsFailed, TlsStream
from tests.interop import certificates


class Remote:
    """A tunnel whose remote says one thing, or what a server's TLS makes of the client's bytes."""

    def __init__(self, said: bytes | ssl.SSLContext) -> None:
        self._said = said
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None
        if isinstance(said, ssl.SSLContext):
            self._tls = said.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def read(self, size: int = 65_536) -> bytes:
        if isinstance(self._said, bytes):
            said, self._said = self._said, b""
            return said
        return self._outgoing.read()

    async def write(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._tls is not None:
            try:
                self._tls.do_handshake()
            except ssl.SSLError:
                pass  # it waits for more, or was told of an alert

    async def end(self) -> None: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def failure(said: bytes | ssl.SSLContext) -> TlsFailed:
    """How a handshake with a remote fails."""
    context = ssl.create_default_context()
    with pytest.raises(TlsFailed) as caught:
        asyncio.run(TlsStream(Remote(said), context, "127.0.0.1").handshake())
    return caught.value


def test_a_remote_that_speaks_http() -> None:
    error = failure(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert error.message == "TLS with 127.0.0.1: what it speaks is no TLS"
    assert error.no_tls and not error.unverified


def test_a_remote_that_hangs_up() -> None:
    error = failure(b"")
    assert error.message == "TLS with 127.0.0.1: it closed the connection"
    assert not error.no_tls and not error.unverified


def test_a_certificate_that_nobody_knows(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server.cert, made.server.key)
    error = failure(context)
    assert error.message.startswith("TLS with 127.0.0.1: its certificate: ")
    assert error.unverified and not error.no_tls
