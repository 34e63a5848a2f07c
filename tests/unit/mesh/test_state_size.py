"""100,000 workloads fit in 150 MB: measured on a tenth of them, as all of it is proportional."""

from __future__ import annotations

import tracemalloc

from nodenet.mesh.model import Locality, Workload
from nodenet.mesh.state import Batch, MeshState
from tests.unit.mesh.building import pod, service

WORKLOADS = 10_000
SERVICES = 200
#: Bytes for each workload, so 100,000 take 120 MB; the interpreter and the caches have the rest.
BUDGET = 1200
BATCH = 1000


def typical(number: int) -> Workload:
    namespace = f"shop-{number % 50}"
    return pod(
        f"cart-7d9f6bcd4-{number:05x}",
        f"10.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
        services={f"{namespace}/svc-{number % SERVICES}.{namespace}": {80: 8080}},
        namespace=namespace,
        network="network-one",
        node=f"node-{number % 1000:04d}",
        canonical_name="cart",
        canonical_revision="v1",
        workload_name="cart",
        locality=Locality("us-east", f"us-east-{number % 3}"),
        authorization_policies=("shop/istio_converted_static_strict",),
    )


def test_memory_of_a_workload() -> None:
    state = MeshState(node="node-0001")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        state.apply(
            Batch(
                upserts=[
                    service(f"svc-{i}", f"10.96.{i >> 8}.{i & 255}", namespace=f"shop-{i % 50}")
                    for i in range(SERVICES)
                ]
            )
        )
        for start in range(0, WORKLOADS, BATCH):
            state.apply(Batch(upserts=[typical(i) for i in range(start, start + BATCH)]))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(state.workloads) == WORKLOADS
    assert state.staged() == {}
    assert (after - before) / WORKLOADS < BUDGET
