"""The store on a real loop: real time, the embedded CA, real handshakes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import uvloop

from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.clock import LoopClock
from nodenet.identity.peer import check_client, check_server
from nodenet.identity.spiffe import Identity
from nodenet.identity.store import CertificateStore
from nodenet.identity.tls import TlsContexts
from tests.unit.identity.authority import shake


def test_timers_and_time_are_real() -> None:
    async def main() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        fired: list[str] = []
        done = asyncio.Event()
        clock.call_later(0.0, lambda: fired.append("cancelled")).cancel()
        before = clock.now()
        clock.call_later(0.01, done.set)
        async with asyncio.timeout(20):
            await done.wait()
        assert clock.now() >= before and fired == []

    asyncio.run(main())


def test_workloads_get_certificates_and_talk(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ca = EmbeddedCa(tmp_path, intermediate=True)
        store = CertificateStore(ca, LoopClock(loop), random.Random(1))
        names = [Identity("cluster.local", "shop", f"w{number}") for number in range(20)]
        contexts = TlsContexts()
        async with asyncio.TaskGroup() as group:
            group.create_task(store.run(), name="store")
            for name in names:
                store.prefetch(name)
            got = [await store.wait(name) for name in names]
            for server, client in zip(got, got[1:], strict=False):
                ends = shake(contexts.server(server), contexts.client(client))
                assert check_client(ends.server, "cluster.local") == client.identity
                assert check_server(ends.client, (str(server.identity),)) == server.identity
            store.close()

    uvloop.run(main())
