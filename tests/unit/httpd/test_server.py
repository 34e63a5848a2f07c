"""Requests, answers, limits and the end of a server, over loopback and Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nodenet.errors import NodenetError
from nodenet.httpd import client, messages
from nodenet.httpd.client import TcpAddress, fetch
from nodenet.httpd.connection import Limits
from nodenet.httpd.messages import HttpError, Peer, Request, Response, text
from nodenet.httpd.routes import Routes
from nodenet.httpd.server import HttpServer
from nodenet.httpd.sockets import open_tcp, open_unix

Run = Callable[[Callable[[], Awaitable[Any]]], Any]
BIG = b"line of text that repeats\n" * 100_000


async def pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(BIG), 100_000):
        yield BIG[start : start + 100_000]


async def broken() -> AsyncIterator[bytes]:
    yield b"first"
    raise RuntimeError("half way")


def echo(request: Request) -> Response:
    seen = [request.method, request.path, dict(request.query), request.body.decode()]
    return messages.json([*seen, request.header("X-Probe"), str(request.peer)])


STARTED: set[str] = set()


async def slow(request: Request) -> Response:
    STARTED.add(str(request.peer))
    await asyncio.sleep(float(request.query["seconds"]))
    return text("done\n")


def fails(request: Request) -> Response:
    kind = request.query.get("kind")
    if kind == "http":
        raise HttpError(400, "no such level\n")
    if kind == "known":
        raise NodenetError("no map conns", hint="start it")
    raise RuntimeError("a fault")


ROUTES = Routes(
    {
        ("GET", "/echo"): echo,
        ("POST", "/echo"): echo,
        ("GET", "/slow"): slow,
        ("GET", "/fails"): fails,
        ("GET", "/big"): lambda _: Response(body=BIG, compress=True),
        ("GET", "/stream"): lambda _: Response(body=pieces(), compress=True),
        ("GET", "/broken"): lambda _: Response(body=broken()),
    }
)


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | None = None, routes: Routes = ROUTES
) -> AsyncIterator[tuple[HttpServer, TcpAddress]]:
    listeners = open_tcp("127.0.0.1", 0, "--port")
    port = listeners[0].getsockname()[1]
    async with HttpServer("test", routes, listeners, limits=limits) as server:
        yield server, TcpAddress("127.0.0.1", port)


async def ask(where: TcpAddress | Path, target: str, **options: Any) -> client.Answer:
    return await asyncio.to_thread(fetch, where, target, **options)


async def raw(where: TcpAddress, sent: bytes, *, end: bool = False) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection(where.host, where.port)
    try:
        writer.write(sent)
        if end:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_a_request_reaches_its_handler_whole(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            answer = await ask(where, "/echo?a=1&b=x%20y", method="POST", body=b"level=debug")
            assert answer.status == 200
            assert answer.content_type == "application/json"
            assert answer.text.startswith(
                '["POST","/echo",{"a":"1","b":"x y"},"level=debug","","127.0.0.1:'
            )

    run(main)


def test_what_is_not_there_and_what_is_not_allowed(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            assert (await ask(where, "/nothing")).status == 404
            told = await raw(
                where, b"DELETE /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            assert told.startswith(b"HTTP/1.1 405 ")
            assert b"\r\nAllow: GET, POST, HEAD\r\n" in told

    run(main)


def test_head_is_get_without_a_body(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            told = await raw(where, b"HEAD /big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            head, body = told.split(b"\r\n\r\n")
            assert b"Content-Length: %d" % len(BIG) in head
            assert body == b""

    run(main)


def test_requests_follow_each_other_on_one_connection(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            one = b"GET /echo?n=%d HTTP/1.1\r\nHost: x\r\n%s\r\n"
            # both in one packet: the second waits in the buffer while the first is answered
            sent = one % (1, b"") + one % (2, b"Connection: close\r\n")
            told = await raw(where, sent)
            assert told.count(b"HTTP/1.1 200") == 2
            assert told.index(b'"n":"1"') < told.index(b'"n":"2"')

    run(main)


@pytest.mark.parametrize("path", ["/big", "/stream"])
def test_bodies_are_gzipped_for_who_accepts_it(run: Run, path: str) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            plain = await ask(where, path)
            assert plain.body == BIG
            sent = f"GET {path} HTTP/1.0\r\nAccept-Encoding: br, gzip;q=0.5\r\n\r\n"
            head, _, body = (await raw(where, sent.encode())).partition(b"\r\n\r\n")
            assert b"Content-Encoding: gzip" in head and b"Vary: Accept-Encoding" in head
            assert gzip.decompress(body) == BIG
            sent = f"GET {path} HTTP/1.0\r\nAccept-Encoding: gzip;q=0, br\r\n\r\n"
            assert b"Content-Encoding" not in (await raw(where, sent.encode()))

    run(main)


@pytest.mark.parametrize(
    ("query", "status", "body", "level"),
    [
        ("?kind=http", 400, "no such level", None),
        ("?kind=known", 500, "no map conns; start it", logging.WARNING),
        ("", 500, "internal error", logging.ERROR),
    ],
)
def test_a_failing_handler_is_an_answer_and_a_line(
    run: Run,
    caplog: pytest.LogCaptureFixture,
    query: str,
    status: int,
    body: str,
    level: int | None,
) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            answer = await ask(where, f"/fails{query}")
            assert (answer.status, answer.text) == (status, body)
            assert (await ask(where, "/echo")).status == 200

    run(main)
    assert [r.levelno for r in caplog.records if r.levelno > logging.INFO] == (
        [level] if level else []
    )


def test_an_answer_that_breaks_off_does_not_look_whole(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            with pytest.raises(client.NoAnswer):
                await ask(where, "/broken")

    run(main)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /echo HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, b"413"),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nshort", b"408"),
    ],
    ids=["no host", "tls", "header too long", "body too long", "body too late"],
)
def test_bad_requests_are_refused(run: Run, sent: bytes, status: bytes) -> None:
    async def main() -> None:
        limits = Limits(body_bytes=1000, body_seconds=0.1)
        async with serving(limits) as (_, where):
            told = await raw(where, sent)
            assert told.split(b" ")[1] == status
            assert (await ask(where, "/echo")).status == 200

    run(main)


def test_who_sends_no_header_is_cut_in_time(run: Run) -> None:
    async def main() -> None:
        async with serving(Limits(header_seconds=0.05)) as (server, where):
            assert await raw(where, b"GET /echo HT") == b""
            assert await raw(where, b"") == b""
            while server.connections:
                await asyncio.sleep(0.001)

    run(main)


def test_who_stays_silent_after_a_request_is_cut_too(run: Run) -> None:
    async def main() -> None:
        async with serving(Limits(idle_seconds=0.05)) as (_, where):
            told = await raw(where, b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            assert told.count(b"HTTP/1.1 200") == 1

    run(main)


def test_who_does_not_read_is_cut(run: Run) -> None:
    async def main() -> None:
        async with serving(Limits(write_seconds=0.1)) as (server, where):
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, (where.host, where.port))
                request = b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * 20
                await asyncio.get_running_loop().sock_sendall(sock, request)
                # it has been served: from now on it cannot be missed that the server lets it go
                assert await asyncio.get_running_loop().sock_recv(sock, 1) == b"H"
                while server.connections:
                    await asyncio.sleep(0.001)

    run(main)


def test_more_clients_than_allowed_get_503(run: Run) -> None:
    async def main() -> None:
        async with serving(Limits(connections=1)) as (server, where):
            reader, writer = await asyncio.open_connection(where.host, where.port)
            writer.write(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert (await raw(where, b"")).startswith(b"HTTP/1.1 503 ")
            writer.close()
            await writer.wait_closed()
            while server.connections:
                await asyncio.sleep(0.001)
            assert (await ask(where, "/echo")).status == 200

    run(main)


def test_expect_continue_is_answered_before_the_body(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, where):
            reader, writer = await asyncio.open_connection(where.host, where.port)
            writer.write(
                b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"ab")
            assert b'"ab"' in await reader.read()
            writer.close()
            await writer.wait_closed()

    run(main)


def test_closing_waits_for_requests_and_for_nobody_else(run: Run) -> None:
    STARTED.clear()

    async def main() -> None:
        async with serving() as (server, where):
            _, idle = await asyncio.open_connection(where.host, where.port)
            while not server.connections:
                await asyncio.sleep(0.001)
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(ask(where, "/slow?seconds=0.2"), name="asked")
                while not STARTED:
                    await asyncio.sleep(0.001)
                await server.close()
            assert asked.result().text == "done"
            assert server.connections == 0
            with pytest.raises(client.NobodyThere):
                await ask(where, "/echo")
            idle.close()
            with contextlib.suppress(OSError):
                await idle.wait_closed()

    run(main)


def test_closing_has_an_end(run: Run) -> None:
    STARTED.clear()

    async def main() -> None:
        async with serving() as (server, where):
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(
                    asyncio.to_thread(_fails_to_ask, where, "/slow?seconds=60"), name="asked"
                )
                while not STARTED:
                    await asyncio.sleep(0.001)
                await server.close(0.05)
                await asked

    run(main)


def _fails_to_ask(where: TcpAddress, target: str) -> None:
    with pytest.raises(client.NoAnswer):
        fetch(where, target)


def test_over_a_unix_socket_the_peer_is_a_process(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"

    async def main() -> None:
        async with HttpServer("test", ROUTES, [open_unix(path, "--id")]):
            answer = await ask(path, "/echo")
            assert f"pid {os.getpid()} (uid {os.getuid()})" in answer.text
        assert not path.exists()

    run(main)


def test_a_unix_peer_can_be_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"

    def nobody(peer: Peer) -> bool:
        assert peer.over_unix
        return False

    async def main() -> None:
        async with HttpServer("test", ROUTES, [open_unix(path, "--id")], allow=nobody):
            assert (await ask(path, "/echo")).status == 403

    run(main)
