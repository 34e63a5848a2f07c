"""A pod as a member of the mesh: who it is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodenet.agents.ztunnel.mesh_context import Mesh, MeshContext
from nodenet.agents.ztunnel.mesh_pod import MeshPod
from nodenet.agents.ztunnel.pod import Pod
from nodenet.agents.ztunnel.poller import Poller
from nodenet.agents.ztunnel.telemetry import silent
from nodenet.identity.ca import EmbeddedCa
from nodenet.identity.clock import LoopClock
from nodenet.identity.store import CertificateStore
from nodenet.identity.tls import TlsContexts
from tests.unit.agents.ztunnel import mesh_scene


def facts(**more: Any) -> Pod:
    known: dict[str, Any] = {
        "cookie": 1,
        "name": "shop/cart",
        "hosts": frozenset(),
        "backend": "ebpf",
    }
    return Pod(**(known | more))


@pytest.fixture
def context(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[MeshContext]:
    rng = random.Random(7)
    store = CertificateStore(EmbeddedCa(tmp_path), LoopClock(loop), rng)
    poller = Poller(loop)
    made = MeshContext.made(
        Mesh(
            state=mesh_scene.mesh().state,
            certificates=store,
            tls=TlsContexts(),
            network=mesh_scene.NETWORK,
        ),
        loop,
        poller,
        telemetry=silent(),
        rng=rng,
        connect_seconds=1.0,
    )
    yield made
    made.close()
    poller.close()


class Waiter:
    begun = 0

    def begin(self) -> None:
        self.begun += 1

    def workload_unknown(self) -> None:
        raise AssertionError("it is known by now")


@pytest.mark.parametrize(
    "more",
    [{"uid": "c//Pod/shop/cart"}, {"hosts": frozenset({"10.1.0.1"})}],
    ids=["uid", "address"],
)
def test_who_a_pod_is_may_be_told_later(context: MeshContext, more: dict[str, object]) -> None:
    served: Any = SimpleNamespace(pod=facts())
    pod = MeshPod(served, context)
    assert pod.workload() is None
    waiter = Waiter()
    pod.await_workload(waiter)
    served.pod = facts(**more)
    pod.pod_changed()
    workload = pod.workload()
    assert workload is not None and workload.name == "cart"
    assert waiter.begun == 1
    assert not context.workload_waits
    pod.close()
