"""Tunnels through a konnectivity server, for asyncio.

    async with await dial("unix:/run/konnectivity.sock", "10.0.0.5:10250") as stream:
        await stream.write(b"...")
        answer = await stream.read()

By gRPC (one call a tunnel; `Proxy` keeps a connection for many) or by HTTP CONNECT, whichever the
server's ``--mode`` is, over a Unix socket or mTLS TCP. Upstream's client is konnectivity-client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from nodenet.endpoint import format_host_port
from nodenet.errors import UsageError
from nodenet.konnectivity.errors import KonnectivityError
from nodenet.konnectivity.tls_files import TlsUnusable, load_authorities, load_pair

Mode = Literal["grpc", "http-connect"]
#: For connecting to the server and for its answer to a dial; konnectivity-client's backstop.
DIAL_SECONDS: Final = 30.0
#: What a client's Unix socket holds, where the kernel allows it (net.core.wmem_max): with the
#: default of 208 KiB client and server wait for each other in turns.
SEND_BUFFER_BYTES: Final = 1 << 20


class ProxyUnreachable(KonnectivityError):
    """The server cannot be reached, or is none; ``server`` is its address."""

    def __init__(self, server: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"konnectivity server {server}: {reason}", hint=hint)
        self.server = server
        self.reason = reason


class DialFailed(KonnectivityError):
    """The server or the agent could not reach the address.

    ``status`` is the HTTP status of a CONNECT, None by gRPC. ``reason`` is what they said.
    """

    def __init__(self, address: str, reason: str, *, status: int | None = None) -> None:
        shown = f"HTTP {status}: {reason}" if status is not None else reason
        super().__init__(f"cannot reach {address}: {shown}")
        self.address = address
        self.reason = reason
        self.status = status


class TunnelLost(KonnectivityError):
    """The tunnel ended other than by the remote's closing it."""


class Stream(Protocol):
    """A tunnel. One reader and one writer at a time."""

    async def read(self, size: int = 65_536) -> bytes:
        """Some bytes, at most ``size``; empty when the remote has ended. TunnelLost."""

    async def write(self, data: bytes) -> None:
        """Sends all of it; waits while much is unsent. TunnelLost."""

    async def end(self) -> None:
        """Sends nothing more; what the remote sends still arrives.

        The protocol has no such thing: through an upstream server by gRPC it does nothing.
        """

    async def close(self) -> None:
        """Ends the tunnel; what was written is delivered. Raises nothing."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """How the server is checked and what is shown to it. Files in PEM, read at each connection."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    """Name in the server's certificate, if it is not the host that is dialled."""

    def context(self) -> ssl.SSLContext:
        """For one connection; blocking. ValueError when a file is no good, it says which.

        Whatever is in the file of authorities is believed, as by Go and by our agent.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            load_authorities(made, self.ca)
            if self.cert is not None:
                load_pair(made, self.cert, self.key or self.cert)
        except TlsUnusable as error:
            raise ValueError(error.message) from error
        return made


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server's frontend listens: a Unix socket, or host and port with TLS."""

    path: Path | None = None
    host: str = ""
    port: int = 0
    tls: TlsFiles | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return format_host_port(self.host, self.port)


def parse_server(text: str, tls: TlsFiles | None = None) -> Server:
    """``unix:PATH``, ``/PATH``, ``HOST:PORT`` or ``https://HOST:PORT``. UsageError."""
    if text.startswith(("unix:", "/", "./")):
        path = text.removeprefix("unix:")
        if path.startswith("//"):
            path = path[2:]
        if not path:
            raise UsageError(f"konnectivity server {text!r}: no path", hint="unix:/run/k.sock")
        return Server(path=Path(path))
    rest = text.removeprefix("https://").rstrip("/")
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise UsageError(
            f"konnectivity server {text!r}: neither a Unix socket nor host and port",
            hint="unix:/run/k.sock or 10.0.0.1:8090",
        )
    if tls is None:
        raise UsageError(
            f"konnectivity server {text}: TCP needs TLS", hint="give the CA, --ca FILE"
        )
    return Server(host=host, port=int(port), tls=tls)


async def dial(
    server: str | Server,
    address: str,
    *,
    mode: Mode = "grpc",
    tls: TlsFiles | None = None,
    timeout: float = DIAL_SECONDS,
) -> Stream:
    """A tunnel to ``address`` (host:port; the agent resolves the name) through a server.

    ``timeout`` in seconds is for everything until the tunnel is there. Raises ProxyUnreachable,
    DialFailed (the address, or no agent), TimeoutError is a ProxyUnreachable or DialFailed too;
    UsageError for what is no server or no address.
    """
    where = parse_server(server, tls) if isinstance(server, str) else server
    check_address(address)
    if mode == "http-connect":
        from nodenet.konnectivity.client_connect import connect

        return await connect(where, address, timeout=timeout)
    from nodenet.konnectivity.client_grpc import Proxy

    deadline = asyncio.get_running_loop().time() + timeout
    proxy = await Proxy.connect(where, timeout=timeout)
    left = deadline - asyncio.get_running_loop().time()
    try:
        return await proxy.dial(address, timeout=max(left, 0.01), own=True)
    except ProxyUnreachable as error:
        # it took the connection, so something is there: the other mode, or a wrong certificate
        hint = wrong_door("grpc", where)
        raise ProxyUnreachable(str(where), error.reason, hint=hint) from error


def check_address(address: str) -> None:
    """UsageError for what is not host and port, and so could become more than a target."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not (colon and bare and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise UsageError(f"address {address!r}: not host and port", hint="e.g. 10.0.0.5:10250")
    if not address.isascii() or not address.isprintable() or " " in address or len(host) > 255:
        raise UsageError(
            f"address {address!r}: no host has this name", hint="names as DNS has them"
        )


def wrong_door(mode: Mode, server: Server) -> str:
    """What to look at when a server took the connection and did not answer."""
    text = f"is its --mode {mode}?"
    if server.path is not None:
        return text
    return f"{text} does its --server-ca-cert know this client's certificate?"


def widen(transport: asyncio.BaseTransport) -> None:
    """Lets a Unix socket hold `SEND_BUFFER_BYTES`."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def explain(error: BaseException) -> str:
    """Why a connection could not be made, in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return (error.strerror or str(error)).lower()
    if isinstance(error, OSError) and error.errno:
        # asyncio puts its own words in the place of the system's
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
