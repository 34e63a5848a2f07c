"""Agents with tokens, ours and the real one, at our server and an API that reviews them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nodenet.konnectivity.client import dial
from tests.interop.peers import Maker, ServerProcess, World, wait_for
from tests.interop.remotes import Remote, echo
from tests.unit.kube.fake_api import FakeApi, fake_api

pytestmark = pytest.mark.timeout(1200)  # the first one may build the Go peers

ACCOUNT = "system:serviceaccount:kube-system:konnectivity-agent"
AUDIENCE = "system:konnectivity-server"


def review(spec: dict[str, Any]) -> dict[str, Any]:
    """By the token's text."""
    assert spec["audiences"] == [AUDIENCE]
    match spec["token"]:
        case "good":
            return {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": ACCOUNT}}
        case "other-account":
            user = {"username": "system:serviceaccount:kube-system:default"}
            return {"authenticated": True, "audiences": [AUDIENCE], "user": user}
        case "other-audience":
            return {"authenticated": True, "audiences": ["api"], "user": {"username": ACCOUNT}}
        case _:
            return {"error": "[invalid bearer token, token has expired]"}


@contextlib.contextmanager
def api() -> Iterator[FakeApi]:
    """In a thread of its own: the tests wait for processes."""
    made: list[FakeApi] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def serve() -> None:
        async with fake_api(review=review) as found:
            end = asyncio.Event()
            made.append(found)
            loops.append((asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="api")
    thread.start()
    assert ready.wait(10)
    try:
        yield made[0]
    finally:
        loop, end = loops[0]
        loop.call_soon_threadsafe(end.set)
        thread.join(10)


def carries(server: ServerProcess, address: str) -> None:
    async def work() -> None:
        async with await dial(server.target, address, timeout=10) as stream:
            await stream.write(b"works")
            assert await stream.read() == b"works"

    asyncio.run(work())


@pytest.mark.parametrize(
    "maker", ["ours", pytest.param("go", marks=pytest.mark.go)], ids=lambda m: f"{m}-agent"
)
def test_an_agent_gets_in_by_its_token(world: World, maker: Maker) -> None:
    token = world.folder / "token"
    with api() as where, Remote(echo) as remote:
        server = world.server(
            "ours",
            "--cluster-ca-cert=",
            "--agent-namespace=kube-system",
            "--agent-service-account=konnectivity-agent",
            f"--authentication-audience={AUDIENCE}",
            f"--kubeconfig={where.kubeconfig(world.folder)}",
        )
        token.write_text("expired")
        agent = world.agent(
            maker,
            server,
            f"--service-account-token-path={token}",
            "--sync-interval=100ms",
            "--sync-interval-cap=300ms",
        )
        for text, refusal in (
            ("expired", "lookup failed: [invalid bearer token, token has expired]"),
            ("other-account", 'incoming request from "default" service account'),
            ("other-audience", f'token is not for the audience "{AUDIENCE}"'),
        ):
            token.write_text(text)
            wait_for(lambda said=refusal: said in server.log.read_text(), refusal)  # type: ignore[misc]  # a loop
            # the real one does not look at the status of a call that ends without headers
            told = refusal if maker == "ours" else "cannot connect once"
            wait_for(lambda said=told: said in agent.log.read_text(), f"the agent says {told}")  # type: ignore[misc]  # a loop
            assert agent.get("/readyz")[0] == 503 and not server.ready
        token.write_text("good")
        wait_for(lambda: server.ready, "it is let in")
        token.write_text("expired")
        carries(server, remote.address)
        where.faults[:] = [500] * 1000
        carries(server, remote.address)
        assert server.running and agent.running
