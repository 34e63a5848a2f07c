"""Bytes through every pair of server and agent: ours with the real ones, both ways, and ours."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from nodenet.konnectivity.client import DialFailed, Mode, Server, dial
from nodenet.konnectivity.client_grpc import Proxy
from tests.interop.certificates import Certificates
from tests.interop.go_peer import go_peer
from tests.interop.peers import AgentProcess, Maker, ServerProcess, Transport, World, wait_for
from tests.interop.remotes import Remote, Sink, banner, echo, source

pytestmark = pytest.mark.timeout(1200)  # the first one may build the Go peers

T = TypeVar("T")
Pair = tuple[ServerProcess, AgentProcess]
#: Server and agent. The real pair is in it to know that a test is about what both do.
MAKERS: list[tuple[Maker, Maker]] = [
    ("go", "ours"),
    ("ours", "go"),
    ("ours", "ours"),
    ("go", "go"),
]
WAYS: list[tuple[Mode, Transport]] = [
    ("grpc", "uds"),
    ("grpc", "tcp"),
    ("http-connect", "uds"),
    ("http-connect", "tcp"),
]
MIB = 1 << 20


def marks(makers: tuple[Maker, Maker]) -> list[pytest.MarkDecorator]:
    """A real peer needs Go."""
    return [pytest.mark.go] if "go" in makers else []


EVERY_PAIR = [pytest.param(*makers, marks=marks(makers), id="-".join(makers)) for makers in MAKERS]
EVERY_WAY = [
    pytest.param((makers, way), marks=marks(makers), id="-".join((*makers, *way)))
    for makers in MAKERS
    for way in WAYS
]


def run(work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


@pytest.fixture(params=EVERY_WAY)
def pair(request: pytest.FixtureRequest, world: World) -> Iterator[Pair]:
    (server, agent), (mode, transport) = request.param
    yield world.connected(server, agent, mode=mode, transport=transport)


async def exchange(server: Server, mode: Mode, address: str, data: bytes) -> bytes:
    """Sends ``data`` to an echo and reads as much back, both at a time."""
    async with await dial(server, address, mode=mode, timeout=20) as stream:
        got = bytearray()

        async def read() -> None:
            while len(got) < len(data) and (part := await stream.read()):
                got.extend(part)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(), name="read")
            for at in range(0, len(data), 300_000):
                await stream.write(data[at : at + 300_000])
        return bytes(got)


def test_bytes_come_back_as_they_were(pair: Pair) -> None:
    server, agent = pair
    data = random.Random(1).randbytes(3 * MIB)
    with Remote(echo) as remote:
        assert run(exchange(server.target, server.mode, remote.address, data)) == data
        wait_for(lambda: remote.open == 0, "the remote's connection is closed")
    gauge = "konnectivity_network_proxy_agent_open_endpoint_connections"
    wait_for(lambda: agent.metric(gauge) == 0, f"{gauge} is 0")


def test_many_tunnels_at_a_time(pair: Pair) -> None:
    server, _ = pair

    async def all_of_them(address: str) -> list[bytes]:
        return await asyncio.gather(
            *(exchange(server.target, server.mode, address, b"%d" % n * 2000) for n in range(60))
        )

    with Remote(echo) as remote:
        assert run(all_of_them(remote.address)) == [b"%d" % n * 2000 for n in range(60)]


def test_a_download_ends_when_the_remote_ends(pair: Pair) -> None:
    server, _ = pair

    async def download(address: str) -> int:
        size = 0
        async with await dial(server.target, address, mode=server.mode, timeout=20) as stream:
            # the real server lets what a remote says first overtake its 200 line
            await stream.write(b"?")
            while part := await stream.read(1 << 18):
                size += len(part)
        return size

    with Remote(source(20 * MIB, asked=True)) as remote:
        assert run(download(remote.address)) == 20 * MIB


def test_a_closed_port_is_refused_in_words(pair: Pair) -> None:
    server, _ = pair
    with Remote(echo) as gone:
        address = gone.address
    with pytest.raises(DialFailed) as caught:
        run(dial(server.target, address, mode=server.mode, timeout=20))
    assert f"dial tcp {address}: connect: connection refused" in caught.value.reason
    assert caught.value.status == (502 if server.mode == "http-connect" else None)


def test_a_name_that_is_none_is_refused_in_words(pair: Pair) -> None:
    server, _ = pair
    with pytest.raises(DialFailed) as caught:
        run(dial(server.target, "nobody.invalid:80", mode=server.mode, timeout=20))
    assert "lookup nobody.invalid" in caught.value.reason
    assert caught.value.status == (502 if server.mode == "http-connect" else None)


def test_names_and_ipv6(pair: Pair) -> None:
    server, _ = pair
    with Remote(echo, host="::1") as six, Remote(echo) as four:
        for address in (six.address, f"localhost:{four.port}"):
            assert run(exchange(server.target, server.mode, address, b"hello")) == b"hello"


def test_many_tunnels_share_a_connection_by_grpc(pair: Pair) -> None:
    server, _ = pair
    if server.mode != "grpc":
        pytest.skip("HTTP CONNECT has a connection a tunnel")

    async def work(address: str) -> list[bytes]:
        async with await Proxy.connect(server.target, timeout=30) as proxy:
            streams = [await proxy.dial(address, timeout=30) for _ in range(20)]
            for number, stream in enumerate(streams):
                await stream.write(b"%d" % number)
            got = [await stream.read() for stream in streams]
            for stream in streams:
                await stream.close()
            return got

    with Remote(echo) as remote:
        assert run(work(remote.address)) == [b"%d" % n for n in range(20)]


# -- other clients than ours ----------------------------------------------------------------------


def through_go(
    server: ServerProcess, address: str, data: bytes, *, close: bool
) -> subprocess.CompletedProcess[bytes]:
    """What the real client gets for what it sends."""
    return subprocess.run(
        [go_peer(), "client", str(server.target.path), address],
        input=data,
        capture_output=True,
        timeout=60,
        env=os.environ | ({"PEER_CLOSE": "1"} if close else {}),
    )


@pytest.mark.parametrize(("server", "agent"), EVERY_PAIR)
@pytest.mark.go
def test_the_real_client(server: Maker, agent: Maker, world: World) -> None:
    one, _ = world.connected(server, agent, mode="grpc")
    # upstream's client loses what comes before it has noted its own tunnel, so it is to ask first
    with Remote(banner(b"welcome")) as remote, Remote(source(5 * MIB, asked=True)) as large:
        done = through_go(one, large.address, b"?", close=False)
        assert (done.returncode, len(done.stdout)) == (0, 5 * MIB), done.stderr
        with Remote(lambda sock: sock.sendall(sock.recv(5)[::-1])) as once:
            assert through_go(one, once.address, b"abcde", close=False).stdout == b"edcba"
        refused = through_go(one, "127.0.0.1:1", b"", close=False)
        assert b"connection refused" in refused.stderr
        del remote


@pytest.mark.parametrize(("server", "agent"), [EVERY_PAIR[0], EVERY_PAIR[2]])
@pytest.mark.go
def test_write_then_close_by_the_real_client(server: Maker, agent: Maker, world: World) -> None:
    one, _ = world.connected(server, agent, mode="grpc")
    sink, data = Sink(), random.Random(2).randbytes(MIB)
    with Remote(sink) as remote:
        for _ in range(10):
            assert through_go(one, remote.address, data, close=True).returncode == 0
        assert sink.wait(10) == [(MIB, hashlib.sha256(data).hexdigest())] * 10


@pytest.mark.parametrize(("server", "agent"), EVERY_PAIR)
def test_curl_through_http_connect(
    server: Maker, agent: Maker, world: World, certs: Certificates
) -> None:
    one, _ = world.connected(server, agent, mode="http-connect", transport="tcp")

    def web(sock: Any) -> None:
        sock.recv(65_536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

    with Remote(web) as remote:
        done = subprocess.run(
            [
                "curl",
                "--silent",
                "--show-error",
                "--max-time",
                "20",
                "--proxytunnel",
                "--proxy",
                f"https://127.0.0.1:{one.target.port}",
                "--proxy-cacert",
                str(certs.ca),
                "--proxy-cert",
                str(certs.client.cert),
                "--proxy-key",
                str(certs.client.key),
                f"http://{remote.address}/",
            ],
            capture_output=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (0, b"hello"), done.stderr
