"""A server's lease, and the count of all, at an API in memory."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from nodenet.agents.konnectivity import server_leases
from nodenet.agents.konnectivity.server_leases import LeaseKeeper
from nodenet.agents.konnectivity.server_metrics import LeaseMetrics
from nodenet.kube.client import ApiClient
from nodenet.kube.leases import collection, make
from tests.unit.agents.konnectivity.agent_scene import run, until
from tests.unit.kube.fake_api import FakeApi, fake_api

LABELS = {"k8s-app": "konnectivity-server"}
PATH = collection("kube-system")


class Scene:
    """One keeper, the counts it told, and its clock."""

    def __init__(self, client: ApiClient) -> None:
        self.now = 1_790_000_000.0
        self.jump = 0.0
        """What this machine's clock is wrong by."""
        self.told: list[int] = []
        self.metrics = LeaseMetrics()
        self.keeper = LeaseKeeper(
            client,
            server_id="s1",
            namespace="kube-system",
            labels=LABELS,
            metrics=self.metrics,
            tell=self.told.append,
            rng=Random(1),
            clock=lambda: self.now + self.jump,
            steady=lambda: self.now,
        )

    def put(self, api: FakeApi, name: str, *, age: float, labels: Any = LABELS) -> None:
        lease = make(name, holder=name, seconds=30, labels=labels, now=self.now - age)
        api.answer("POST", PATH, lease)


def test_a_lease_is_made_renewed_and_deleted() -> None:
    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            scene = Scene(client)
            await scene.keeper.renew()
            name = f"{PATH}/konnectivity-proxy-server-s1"
            first = api.objects[name]
            assert first["spec"]["holderIdentity"] == "s1"
            assert first["spec"]["leaseDurationSeconds"] == 30
            assert first["metadata"]["labels"] == LABELS
            renewed = first["spec"]["renewTime"]
            scene.now += 15
            await scene.keeper.renew()
            assert api.objects[name]["spec"]["renewTime"] > renewed
            await scene.keeper.leave()
            assert api.objects == {}

    run(test())


def test_servers_are_counted_and_the_dead_are_deleted() -> None:
    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            scene = Scene(client)
            await scene.keeper.renew()
            scene.put(api, "konnectivity-proxy-server-s2", age=10)
            scene.put(api, "konnectivity-proxy-server-s3", age=31)
            scene.put(api, "somebody-else", age=500, labels={"k8s-app": "other"})
            assert await scene.keeper.count() == 2 and scene.told == [2]
            assert not api.deletions, "its server may only have another clock"
            # the count grows and shrinks
            scene.put(api, "konnectivity-proxy-server-s4", age=0)
            await scene.keeper.count()
            scene.now += 30
            await scene.keeper.renew()
            assert await scene.keeper.count() == 1
            assert scene.told == [2, 3, 1]
            assert [d["metadata"]["name"][-2:] for d in api.deletions] == ["s2", "s3", "s4"]
            assert scene.metrics.culled == 3
            assert scene.metrics.lists == {("200", "OK"): 3} == scene.metrics.deletes

    run(test())


def test_a_clock_that_jumps_deletes_nobodys_lease() -> None:
    """Upstream: a server whose clock is 30 s ahead deletes the leases of all others."""

    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            scene = Scene(client)
            name = f"{PATH}/konnectivity-proxy-server-s2"
            scene.put(api, "konnectivity-proxy-server-s2", age=0)
            for step in range(8):
                scene.jump = 3600.0 if step in (2, 3) else -3600.0 if step in (5, 6) else 0.0
                await scene.keeper.renew()
                assert await scene.keeper.count() == 2, step
                scene.now += 15
                version = api.objects[name]["metadata"]["resourceVersion"]
                again = make(
                    "konnectivity-proxy-server-s2",
                    holder="s2",
                    seconds=30,
                    labels=LABELS,
                    now=scene.now,
                    version=version,
                )
                api.answer("PUT", name, again)
            assert not api.deletions

    run(test())


def test_a_server_that_came_back_meanwhile_is_not_deleted() -> None:
    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            scene = Scene(client)
            scene.put(api, "konnectivity-proxy-server-s2", age=31)
            listed = dict(api.objects[f"{PATH}/konnectivity-proxy-server-s2"])
            listed["metadata"] = dict(listed["metadata"])
            renewed = make(
                "konnectivity-proxy-server-s2",
                holder="s2",
                seconds=30,
                labels=LABELS,
                now=scene.now,
                version=listed["metadata"]["resourceVersion"],
            )
            api.answer("PUT", f"{PATH}/konnectivity-proxy-server-s2", renewed)
            await scene.keeper._delete_expired(listed)
            assert api.deletions == [] and scene.metrics.deletes == {("409", "Conflict"): 1}

    run(test())


def test_an_api_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_leases, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(server_leases, "RENEW_SECONDS", 0.01)

    async def test() -> None:
        async with fake_api(faults=[500, 503, 403]) as api, ApiClient(api.access) as client:
            scene = Scene(client)
            async with asyncio.TaskGroup() as tasks:
                work = tasks.create_task(scene.keeper.run())
                await until(lambda: len(scene.told) >= 3, "it counts after all")
                work.cancel()
            assert set(scene.told) == {1} and len(api.objects) == 1

    run(test())


def test_a_lost_race_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_leases, "RETRY_SECONDS", 0.01)

    async def test() -> None:
        async with fake_api() as api, ApiClient(api.access) as client:
            scene = Scene(client)
            await scene.keeper.renew()
            api.faults[:] = [409]
            async with asyncio.TaskGroup() as tasks:
                work = tasks.create_task(scene.keeper.run())
                await until(lambda: scene.told == [1], "it counts after all")
                work.cancel()

    run(test())


def test_leaving_an_api_that_is_gone_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_leases, "GOODBYE_SECONDS", 0.1)

    async def test() -> None:
        async with fake_api(silent=True) as api, ApiClient(api.access) as client:
            await Scene(client).keeper.leave()

    run(test())
