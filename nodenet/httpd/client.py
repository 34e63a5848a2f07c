"""A blocking client for the admin surfaces of this host: one request, one answer."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import h11

from nodenet.endpoint import format_host_port
from nodenet.errors import NodenetError, NotFound

#: An answer is a dump of at most some 100,000 workloads of 1 KB.
MAX_ANSWER_BYTES: Final = 1 << 30
_READ_BYTES: Final = 256 * 1024


class NobodyThere(NotFound):
    """Nothing listens at the address."""

    def __init__(self, where: str, error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        super().__init__(f"connect {where}: {reason}")
        self.where = where
        self.reason = reason


class NoAnswer(NodenetError):
    """Somebody is there, but the answer did not come, or not as HTTP."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where to ask over TCP."""

    host: str
    port: int

    def __str__(self) -> str:
        return format_host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    content_type: str
    body: bytes

    @property
    def text(self) -> str:
        """The body as text, without white space at its end."""
        return self.body.decode(errors="replace").rstrip()


def fetch(
    where: TcpAddress | Path,
    target: str,
    *,
    method: str = "GET",
    body: bytes = b"",
    connect_seconds: float = 2.0,
    answer_seconds: float = 30.0,
) -> Answer:
    """Asks for ``target`` (path and query) at a TCP address or a Unix socket.

    Raises NobodyThere when there is no such place, NoAnswer when the answer is not whole within
    ``answer_seconds``, PermissionError when the socket's mode forbids it.
    """
    with _connected(where, connect_seconds) as sock:
        host = str(where) if isinstance(where, TcpAddress) else "localhost"
        end = time.monotonic() + answer_seconds
        http = h11.Connection(h11.CLIENT)
        headers = [("Host", host), ("Connection", "close"), ("Content-Length", str(len(body)))]
        request = h11.Request(method=method, target=target, headers=headers)
        try:
            sock.settimeout(answer_seconds)
            raw = (http.send(request) or b"") + (http.send(h11.Data(data=body)) or b"")
            with contextlib.suppress(BrokenPipeError):  # refused before it was asked
                sock.sendall(raw + (http.send(h11.EndOfMessage()) or b""))
            return _answer(_events(http, sock, end))
        except TimeoutError as error:
            raise NoAnswer(f"{where}: no answer within {answer_seconds:g} s") from error
        except OSError as error:
            raise NoAnswer(f"{where}: {(error.strerror or str(error)).lower()}") from error
        except h11.RemoteProtocolError as error:
            # h11 names its states, which says nothing to whoever asked
            raise NoAnswer(f"{where}: no answer in HTTP came") from error


def _connected(where: TcpAddress | Path, seconds: float) -> socket.socket:
    try:
        if isinstance(where, TcpAddress):
            return socket.create_connection((where.host, where.port), seconds)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise NobodyThere(str(where), error) from error
    try:
        sock.settimeout(seconds)
        sock.connect(str(where))
    except PermissionError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise NobodyThere(str(where), error) from error
    return sock


def _events(http: h11.Connection, sock: socket.socket, end: float) -> Iterator[object]:
    while True:
        event = http.next_event()
        if event is not h11.NEED_DATA:
            yield event
            if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return
            continue
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        http.receive_data(sock.recv(_READ_BYTES))


def _answer(events: Iterator[object]) -> Answer:
    status, kind, parts, size = 0, "", [], 0
    for event in events:
        if isinstance(event, h11.Response):
            status = event.status_code
            kind = dict(event.headers).get(b"content-type", b"").decode("latin-1")
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
            size += len(event.data)
            if size > MAX_ANSWER_BYTES:
                raise NoAnswer(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return Answer(status, kind, b"".join(parts))
