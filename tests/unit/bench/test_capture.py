"""The floors of `bench.capture`, from samples."""

from __future__ import annotations

import pytest

from bench import _kernel_scene as kernel
from bench import capture
from bench._samples import Samples


def test_floors_compare_ebpf_with_iptables_and_with_nothing() -> None:
    samples = Samples()
    for scene in (kernel.OUTBOUND, kernel.INBOUND):
        for variant, rate, connect, trip, bulk in (
            ("none", 30_000.0, 15.0, 14.0, 3.5),
            ("iptables", 24_000.0, 22.0, 17.5, 2.0),
            ("ebpf", 27_000.0, 18.0, 14.14, 3.43),
        ):
            samples.record(scene, kernel.CONNECTIONS, "1/s", variant, rate)
            samples.record(scene, kernel.CONNECT_P50, "us", variant, connect)
            samples.record(scene, kernel.ROUND_TRIP, "us", variant, trip)
            samples.record(scene, kernel.BULK, "GB/s", variant, bulk)
    floors = {floor.name: floor for floor in capture.kernel_floors(samples)}
    assert {name: pytest.approx(floor.got) for name, floor in floors.items()} == {
        f"{scene}: {what}": got
        for scene in ("outbound", "inbound")
        for what, got in (
            ("connections a second, ebpf/iptables", 1.125),
            ("added connect time, ebpf/iptables", 3 / 7),
            ("64 B round trip, ebpf/none", 1.01),
            ("bulk, ebpf/none", 0.98),
        )
    }
    assert all(floor.ok for floor in floors.values())
