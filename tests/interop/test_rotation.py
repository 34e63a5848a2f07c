"""Certificates, keys and the CA are replaced under a running pair that carries a tunnel."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest

from nodenet.konnectivity.client import dial
from tests.interop.certificates import Authority, Certificates, Pair
from tests.interop.peers import Maker, World, wait_for
from tests.interop.remotes import Remote, echo

pytestmark = pytest.mark.timeout(1200)  # the first one may build the Go peers


def issued(folder: Path, base: Certificates) -> Certificates:
    """A new CA, and what it signed."""
    folder.mkdir()
    authority = Authority(folder.name)
    return dataclasses.replace(
        base,
        ca=authority.write(folder / "ca.crt"),
        server=authority.issue(folder, "server", "localhost", "127.0.0.1"),
        client=authority.issue(folder, "client"),
    )


def put(source: Certificates, into: Certificates) -> None:
    """Replaces files one after the other, as a kubelet or cert-manager does."""
    into.ca.parent.mkdir(exist_ok=True)
    for name in ("server", "client"):
        old, new = getattr(into, name), getattr(source, name)
        shutil.copy(new.cert, old.cert)
        shutil.copy(new.key, old.key)
    shutil.copy(source.ca, into.ca)


@pytest.mark.parametrize(
    "maker", ["ours", pytest.param("go", marks=pytest.mark.go)], ids=lambda m: f"{m}-agent"
)
def test_everything_is_rotated(world: World, maker: Maker) -> None:
    first, second = (issued(world.folder / name, world.certificates) for name in ("one", "two"))
    used = world.folder / "used"
    files = Certificates(
        ca=used / "ca",
        server=Pair(used / "s.crt", used / "s.key"),
        client=Pair(used / "c.crt", used / "c.key"),
        foreign_ca=first.foreign_ca,
        foreign_client=first.foreign_client,
    )
    put(first, files)
    world.certificates = files
    server = world.server("ours")
    old = world.agent(maker, server, "--sync-interval=100ms", agent_id="old")
    wait_for(lambda: server.ready, "connected")
    late = world.agent("ours", server, agent_id="late", start=False)
    backends = "konnectivity_network_proxy_server_ready_backends"

    def count(number: int) -> bool:
        return server.metric(backends, proxy_strategy="default") == number

    async def work(address: str) -> None:
        async with await dial(server.target, address, timeout=10) as stream:
            await stream.write(b"before")
            assert await stream.read() == b"before"
            put(second, files)
            said = f"agents: certificates of {files.server.cert} are in use"
            await asyncio.to_thread(wait_for, lambda: said in server.log.read_text(), said)
            with late:  # it can only get in by the new CA
                await asyncio.to_thread(wait_for, lambda: count(2), "an agent by the new files")
                await stream.write(b"after")
                assert await stream.read() == b"after", "what is open goes on"

    with Remote(echo) as remote:
        asyncio.run(work(remote.address))
        wait_for(lambda: count(1), "the late agent is gone")
        if maker == "go":
            old.kill()  # it reads its files at start only
            old.start()
        else:
            server.kill()  # ours reads them for each connection
            server.start()
        wait_for(lambda: server.ready, "the old agent is back, by the new files")
        with world.agent("ours", server, "--ca-cert=" + str(first.ca), start=False) as stale:
            wait_for(lambda: "x509" in stale.get("/readyz")[1], "the old CA knows nobody any more")
