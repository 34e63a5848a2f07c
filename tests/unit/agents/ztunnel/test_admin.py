"""Paths, methods and bodies of the admin surface, without sockets."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
from typing import Any

import pytest

from nodenet.agents.ztunnel.views import CertificateView, ProxyConnection, StatusView
from nodenet.errors import NotFound
from nodenet.httpd.messages import HttpError, Request
from tests.unit.agents.ztunnel.admin_world import World
from tests.unit.agents.ztunnel.flows import CART_ID, DB_ID


class Client:
    """Asks an admin surface over one kind of socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, over_unix: bool = False) -> None:
        self.world = World()
        self._loop = loop
        self._routes = self.world.admin.routes(over_unix=over_unix)

    def __call__(self, method: str, path: str, **query: str) -> tuple[int, bytes]:
        return self.ask(method, path, query)

    def ask(
        self, method: str, path: str, query: dict[str, str], body: bytes = b""
    ) -> tuple[int, bytes]:
        request = Request(method=method, path=path, query=query, headers={}, body=body)

        async def main() -> tuple[int, bytes]:
            answer = self._routes.find(method, path)(request)
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer.body, bytes):
                return answer.status, answer.body
            return answer.status, b"".join([piece async for piece in answer.body])

        try:
            return self._loop.run_until_complete(main())
        except HttpError as error:
            return error.status, error.text.encode()

    def json(self, path: str, **query: str) -> Any:
        status, body = self("GET", path, **query)
        assert status == 200
        return json.loads(body)


@pytest.fixture
def tcp(loop: asyncio.AbstractEventLoop) -> Client:
    return Client(loop)


@pytest.fixture
def unix(loop: asyncio.AbstractEventLoop) -> Client:
    return Client(loop, over_unix=True)


def test_the_index_names_every_path(tcp: Client, unix: Client) -> None:
    status, page = tcp("GET", "/")
    assert status == 200
    for path, _ in unix.world.admin.routes(over_unix=True).paths():
        assert f'href="{path}"' in page.decode()


def test_logging_as_ztunnel_answers(tcp: Client) -> None:
    assert tcp("POST", "/logging") == (200, b"current log level is info\n")
    assert tcp("POST", "/logging", level="debug") == (200, b"current log level is debug\n")
    assert tcp("POST", "/logging", level="access=off") == (
        200, b"current log level is debug,access=off\n",
    )  # fmt: skip
    assert tcp("POST", "/logging", level="warn", reset="true") == (
        200, b"current log level is warn\n",
    )  # fmt: skip
    status, body = tcp("POST", "/logging", level="loud")
    assert status == 400
    assert b"'loud' is not a level" in body
    assert tcp("POST", "/logging", reset="maybe")[0] == 400
    assert tcp("GET", "/logging")[0] == 405
    assert tcp.world.filters == ["info", "debug", "debug,access=off", "warn"]


def test_quitting_takes_a_post(tcp: Client) -> None:
    assert tcp("GET", "/quitquitquit")[0] == 405
    assert tcp.world.source.shut == 0
    assert tcp("POST", "/quitquitquit") == (200, b"shutdown now\n")
    tcp("GET", "/")  # a turn of the loop
    assert tcp.world.source.shut == 1


def test_the_dump_and_parts_of_it(tcp: Client) -> None:
    assert "workloadState" in tcp.json("/config_dump")
    assert list(tcp.json("/config_dump", only="config,version")) == ["version", "config"]


def test_connections(tcp: Client) -> None:
    rows = [ProxyConnection(**row) for row in tcp.json("/v1/connections")]
    out, into = rows
    assert (out.id, out.pod, out.dir, out.security) == ("3a01", "shop/cart-7d9f6b", "out", "mtls")
    assert (out.local, out.peer, out.peer_name) == (
        "10.42.1.7:51034", "10.96.0.20:5432", "shop/db-0",
    )  # fmt: skip
    assert (out.upstream, out.peer_identity) == ("10.42.2.9:15008", DB_ID)
    assert (out.bytes_sent, out.bytes_received) == (12_702, 3_250_586)
    assert (out.row, out.protocol, out.original_dst) == ("Z9", "HBONE", "10.96.0.20:5432")
    assert (into.dir, into.local, into.peer) == ("in", "10.42.2.9:5432", "10.42.1.7:51034")
    assert (into.peer_identity, into.policy) == (CART_ID, "no policies")
    assert (into.bytes_sent, into.hbone_conn, into.stream_id) == (None, "77", 3)


def test_certificates_with_their_renewal(tcp: Client) -> None:
    bad, good = (CertificateView(**row) for row in tcp.json("/v1/certificates"))
    assert good == CertificateView(
        identity=CART_ID,
        state="available",
        not_before="2001-09-09T01:46:40Z",
        not_after="2001-09-10T01:46:40Z",
        serial="51c0a9e2",
        refresh_at="2001-09-09T13:46:40Z",
        last_error=None,
        attempts=0,
    )
    assert (bad.state, bad.attempts, bad.serial) == ("unavailable", 4, None)
    assert bad.last_error == "ca 10.96.0.5:15012: UNAUTHENTICATED"


def test_status(tcp: Client) -> None:
    tcp.world.admin.listeners = lambda: {"admin": ["127.0.0.1:15000"]}
    found = StatusView(**tcp.json("/v1/status"))
    assert (found.node, found.ready, list(found.pending)) == ("n1", False, ["proxy"])
    assert found.started == "2001-09-09T01:46:40Z"
    assert found.counts == {
        "workloads": 2, "services": 0, "policies": 1, "certificates": 2, "pods": 2, "pool": 0,
        "connections": 2,
    }  # fmt: skip
    assert found.listeners == {"admin": ["127.0.0.1:15000"]}


def test_explaining(tcp: Client, unix: Client) -> None:
    assert tcp.json("/v1/explain", src="shop/cart", dst="shop/db:5432")["result"] == "captured"
    assert tcp("GET", "/v1/explain", src="shop/cart") == (
        400, b"dst is missing: ?src=NS/POD&dst=IP:PORT\n",
    )  # fmt: skip
    with pytest.raises(NotFound):  # the server makes it a 404
        tcp("GET", "/v1/explain", src="shop/nobody", dst="x:1")
    unix.ask("POST", "/v1/explain", {"src": "a", "dst": "b:1"}, b'{"name":"p"}')
    assert unix.world.source.asked == [("a", "b:1", b'{"name":"p"}')]


def test_a_level_for_a_while_is_for_the_socket_only(tcp: Client, unix: Client) -> None:
    assert tcp("POST", "/v1/log-level", level="debug", seconds="60")[0] == 405
    status, body = unix("POST", "/v1/log-level", level="debug", seconds="60")
    answer = json.loads(body)
    assert (status, answer["level"], answer["was"]) == (200, "debug", "info")
    assert answer["until"].startswith("20")
    assert unix.json("/v1/log-level")["until"] == answer["until"]
    assert unix("POST", "/v1/log-level", seconds="soon")[0] == 400
    assert unix("POST", "/v1/log-level", level="debug", seconds="0")[0] == 400
    unix.world.logs.close()


def test_a_profile(tcp: Client) -> None:
    status, body = tcp("GET", "/debug/pprof/profile", seconds="1", frequency="50")
    assert status == 200
    assert b"busy" not in gzip.decompress(body)
    for query in ({"seconds": "0"}, {"seconds": "301"}, {"frequency": "x"}, {"frequency": "-1"}):
        assert tcp("GET", "/debug/pprof/profile", **query)[0] == 400


def test_a_second_profile_waits_for_nobody(loop: asyncio.AbstractEventLoop) -> None:
    world = World()
    handler = world.admin.routes(over_unix=False).find("GET", "/debug/pprof/profile")
    request = Request(method="GET", path="/", query={"seconds": "300"}, headers={})

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            first = handler(request)
            assert inspect.iscoroutine(first)
            tasks.create_task(first, name="first")
            await asyncio.sleep(0)
            second = handler(request)
            assert inspect.isawaitable(second)
            with pytest.raises(HttpError) as caught:
                await second
            assert caught.value.status == 503
            world.admin.close()

    loop.run_until_complete(main())


def test_other_paths(tcp: Client) -> None:
    assert tcp("GET", "/debug/pprof/heap")[0] == 404
    assert tcp("GET", "/config_dump/")[0] == 404
