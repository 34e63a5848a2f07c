"""Requests to an API that answers, refuses, is silent, or goes away."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from nodenet.kube import client as module
from nodenet.kube.access import Access, from_kubeconfig
from nodenet.kube.client import ApiClient
from nodenet.kube.errors import ApiRefused, ApiUnreachable
from tests.interop import certificates
from tests.unit.kube.fake_api import fake_api

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


def test_requests_share_a_connection() -> None:
    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            made = await client.request("POST", LEASES, {"metadata": {"name": "a"}, "spec": {}})
            assert made["metadata"]["resourceVersion"] == "1"
            found = await client.request("GET", LEASES, query={"labelSelector": ""})
            assert len(found["items"]) == 1
            assert api.connections == 1
            assert api.headers[0]["content-type"] == "application/json"

    run(test())


def test_a_refusal_has_status_and_reason() -> None:
    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            with pytest.raises(ApiRefused) as caught:
                await client.request("GET", f"{LEASES}/x")
            assert (caught.value.status, caught.value.reason) == (404, "NotFound")
            assert f"GET {LEASES}/x: 404 NotFound: NotFound here" in caught.value.message

    run(test())


def test_a_connection_that_the_server_closed_is_no_failure() -> None:
    async def test() -> None:
        async with fake_api(close_after_answer=True) as api, ApiClient(api.access) as client:
            for _ in range(5):
                await client.request("GET", LEASES)
                await asyncio.sleep(0.01)
            assert api.connections == 5 and len(api.asked) == 5

    run(test())


def test_nobody_there() -> None:
    async def test() -> None:
        async with fake_api() as api:
            access = api.access
        async with ApiClient(access) as client:
            with pytest.raises(ApiUnreachable, match="kubernetes API 127.0.0.1:.*: GET "):
                await client.request("GET", LEASES)

    run(test())


def test_an_api_that_closes_without_an_answer() -> None:
    """A load balancer without a server behind it does so."""

    async def test() -> None:
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, ApiClient(Access(host="127.0.0.1", port=port, secure=False)) as client:
            with pytest.raises(ApiUnreachable, match="closed without an answer|[Rr]eset"):
                await client.request("GET", LEASES)

    run(test())


@pytest.mark.parametrize("path", ["/a b", "/a\nb", "/ü"])
def test_what_cannot_be_asked_is_an_error_of_the_api(path: str) -> None:
    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            with pytest.raises(ApiUnreachable, match="kubernetes API"):
                await client.request("GET", path)
            assert not api.asked

    run(test())


@pytest.mark.parametrize("token", ["two\nlines", "ü"])
def test_a_token_that_is_no_header(token: str) -> None:
    async def test() -> None:
        async with fake_api() as api:
            access = Access(host=api.access.host, port=api.access.port, secure=False, token=token)
            async with ApiClient(access) as client:
                with pytest.raises(ApiUnreachable, match="kubernetes API") as caught:
                    await client.request("GET", LEASES)
                assert token not in caught.value.message

    run(test())


def test_a_rotated_kubeconfig_is_read_again(tmp_path: Path) -> None:
    """With credentials in the file itself, as kubeadm writes them."""
    path = tmp_path / "kubeconfig"

    def write(port: int, token: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(
            "current-context: c\n"
            "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
            f"clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
            f"users: [{{name: u, user: {{token: '{token}'}}}}]\n"
        )
        fresh.rename(path)

    async def test() -> None:
        async with fake_api() as one, fake_api() as two:
            write(one.access.port, "first")
            async with ApiClient(from_kubeconfig(path)) as client:
                await client.request("GET", LEASES)
                write(one.access.port, "second")
                await client.request("GET", LEASES)
                path.write_text("half of it: [")
                with pytest.raises(ApiUnreachable, match=f"kubeconfig {path}"):
                    await client.request("GET", LEASES)
                write(two.access.port, "third")
                await client.request("GET", LEASES)
            assert [h["authorization"] for h in one.headers] == ["Bearer first", "Bearer second"]
            assert [h["authorization"] for h in two.headers] == ["Bearer third"]

    run(test())


def test_a_silent_api_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.1)

    async def test() -> None:
        async with fake_api(silent=True) as api, ApiClient(api.access) as client:
            with pytest.raises(ApiUnreachable, match="no answer within"):
                await client.request("GET", LEASES)

    run(test())


def test_the_rate_is_bounded() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with fake_api() as api, ApiClient(api.access, qps=50, burst=2) as client:
            began = loop.time()
            await asyncio.gather(*(client.request("GET", LEASES) for _ in range(7)))
            assert 0.08 < loop.time() - began < 5

    run(test())


def test_who_gives_up_gives_the_turn_back() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with fake_api() as api, ApiClient(api.access, qps=5, burst=1) as client:
            await client.request("GET", LEASES)
            crowd = [asyncio.ensure_future(client.request("GET", LEASES)) for _ in range(100)]
            await asyncio.sleep(0)
            for each in crowd:
                each.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            began = loop.time()
            await client.request("GET", LEASES)
            assert loop.time() - began < 5

    run(test())


def test_a_rotated_token_is_used(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "token"
        path.write_text("one")
        async with fake_api() as api:
            access = Access(
                host=api.access.host, port=api.access.port, secure=False, token_file=path
            )
            async with ApiClient(access) as client:
                await client.request("GET", LEASES)
                path.write_text("two!")
                await client.request("GET", LEASES)
            assert [h["authorization"] for h in api.headers] == ["Bearer one", "Bearer two!"]

    run(test())


def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    async def test() -> None:
        certs = certificates.make(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs.server.cert, certs.server.key)
        context.load_verify_locations(certs.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        async with fake_api(context) as api:
            good = Access(
                host="127.0.0.1",
                port=api.access.port,
                ca_data=certs.ca.read_bytes(),
                cert_data=certs.client.cert.read_bytes(),
                key_file=certs.client.key,
            )
            async with ApiClient(good) as client:
                await client.request("GET", LEASES)
            wrong = Access(host="127.0.0.1", port=api.access.port, ca_file=certs.foreign_ca)
            async with ApiClient(wrong) as client:
                with pytest.raises(ApiUnreachable, match="x509"):
                    await client.request("GET", LEASES)

    run(test())
