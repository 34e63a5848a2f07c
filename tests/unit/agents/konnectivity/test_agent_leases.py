"""The count of servers by their leases, asked of an API over HTTP."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from nodenet.agents.konnectivity import agent_leases
from nodenet.agents.konnectivity.agent_leases import LeaseCounter
from nodenet.agents.konnectivity.agent_metrics import LeaseCounts
from nodenet.kube.access import NoAccess
from nodenet.kube.client import ApiClient
from nodenet.kube.leases import collection, make
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.agent_scene import config_for, run
from tests.unit.kube.fake_api import fake_api

NOW = 1_790_000_000.0
LABELS = {"k8s-app": "konnectivity-server"}


def test_valid_leases_are_counted_and_failures_change_nothing() -> None:
    async def work() -> None:
        told: list[int] = []
        counts = LeaseCounts()
        async with fake_api() as api, ApiClient(api.access) as client:
            counter = LeaseCounter(
                client,
                namespace="kube-system",
                selector="k8s-app=konnectivity-server",
                counts=counts,
                tell=told.append,
                rng=Random(1),
                clock=lambda: NOW,
            )
            await counter.count()
            path = collection("kube-system")
            for name, age, labels in (
                ("a", 0.0, LABELS),
                ("b", 29.0, LABELS),
                ("expired", 31.0, LABELS),
                ("other", 0.0, {"k8s-app": "something"}),
            ):
                lease = make(name, holder=name, seconds=30, labels=labels, now=NOW - age)
                await client.request("POST", path, lease)
            await counter.count()
            api.faults.append(403)
            await counter.count()
            await counter.count()
        assert told == [0, 2, 2]
        assert counts.lists == {("200", "OK"): 3, ("403", "Injected"): 1}
        assert sum(counts.latency["200"][0]) == 3

    run(work())


def test_the_count_follows_the_servers_and_not_the_clock() -> None:
    """Servers come and go; this node's clock jumps by an hour meanwhile."""

    async def work() -> None:
        told: list[int] = []
        time = [NOW, 0.0]
        async with fake_api() as api, ApiClient(api.access) as client:
            counter = LeaseCounter(
                client,
                namespace="kube-system",
                selector="k8s-app=konnectivity-server",
                counts=LeaseCounts(),
                tell=told.append,
                rng=Random(1),
                clock=lambda: sum(time),
                steady=lambda: time[0],
            )
            path = collection("kube-system")

            async def renew(*names: str) -> None:
                for name in names:
                    found = api.objects.get(f"{path}/{name}")
                    version = found["metadata"]["resourceVersion"] if found else None
                    lease = make(
                        name,
                        holder=name,
                        seconds=30,
                        labels=LABELS,
                        now=time[0],
                        version=version,
                    )
                    if found:
                        await client.request("PUT", f"{path}/{name}", lease)
                    else:
                        await client.request("POST", path, lease)

            for names, jump in (
                ("a", 0.0),
                ("abc", 0.0),
                ("abc", 3600.0),
                ("abc", -3600.0),
                ("ab", 0.0),
                ("ab", 3600.0),
                ("abd", 0.0),
            ):
                await renew(*names)
                time[1] = jump
                await counter.count()
                time[0] += 15
        # c is renewed no more at the fifth, and its last renewal was 30 s old at the sixth
        assert told == [1, 3, 3, 3, 3, 2, 3]

    run(work())


def test_without_a_cluster_the_agent_does_not_start(certs: Certificates) -> None:
    with pytest.raises(NoAccess):
        agent_leases.access(config_for(certs, 1, "--count-server-leases"), {})


def test_a_kubeconfig_is_read_at_start(certs: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("{}")
    with pytest.raises(NoAccess):
        agent_leases.access(config_for(certs, 1, f"--kubeconfig={path}"), {})
