"""What follows from one run of the load generator."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import _kernel_scene as kernel
from bench._load import Sample, Side
from bench._samples import Samples


def sample(**changes: int) -> Sample:
    base = Sample(
        count=1000,
        total=1250,
        elapsed_ns=100_000_000,
        bytes=0,
        client_cpu_ns=70_000_000,
        server_cpu_ns=30_000_000,
        client_switches=10,
        p50_ns=15_000,
        p99_ns=40_000,
    )
    return msgspec.structs.replace(base, **changes)


def test_cpu_is_that_of_every_connection_also_of_the_warm_up() -> None:
    assert sample().per_second == pytest.approx(10_000)
    assert sample().cpu_us_each == pytest.approx(80)
    assert sample().cpu_share == pytest.approx(1.0)


def test_bulk_is_by_10_9_bytes() -> None:
    bulk = sample(bytes=200_000_000)
    assert bulk.gb_per_second == pytest.approx(2.0)
    assert bulk.cpu_s_per_gb == pytest.approx(0.5)


def test_a_side_names_its_place_to_the_generator() -> None:
    side = Side(netns=Path("/run/netns/x"), cpu=1, cgroup=Path("/cg/y"))
    assert list(side.arguments("server")) == [
        "server_ns=/run/netns/x", "server_cpu=1", "server_cgroup=/cg/y",
    ]  # fmt: skip


def test_a_disturbed_sample_is_taken_again_and_the_best_kept() -> None:
    taken = iter([sample(server_cpu_ns=1), sample(server_cpu_ns=10_000_000), sample()])
    assert kernel.undisturbed(lambda: next(taken), "conn") == sample()


def test_after_a_few_attempts_the_least_disturbed_one_counts() -> None:
    shares = [sample(server_cpu_ns=n) for n in (1, 10_000_000, 5_000_000, 3, 30_000_000)]
    taken = iter(shares)
    assert kernel.undisturbed(lambda: next(taken), "conn") is shares[1]


def test_a_client_that_is_interrupted_in_every_connect_is_the_worst() -> None:
    interrupted = sample(client_switches=900)
    assert kernel.quality(interrupted, "conn") < kernel.quality(sample(server_cpu_ns=1), "conn")
    # a round trip is a switch each way
    assert kernel.quality(interrupted, "rtt") == pytest.approx(1.0)


def test_measures_by_mode() -> None:
    samples = Samples()
    kernel.record(samples, "out", "ebpf", "conn", sample())
    kernel.record(samples, "out", "ebpf", "rtt", sample(p50_ns=14_000))
    kernel.record(samples, "out", "ebpf", "bulk", sample(bytes=200_000_000))
    rows = {row.measure: (row.unit, row.median) for row in samples.rows()}
    assert rows == {
        "connections": ("1/s", pytest.approx(10_000)),
        "connect p50": ("us", 15.0),
        "connect p99": ("us", 40.0),
        "connection CPU": ("us", pytest.approx(80)),
        "64 B round trip p50": ("us", 14.0),
        "64 B round trip CPU": ("us", pytest.approx(80)),
        "bulk": ("GB/s", pytest.approx(2.0)),
        "bulk CPU": ("s/GB", pytest.approx(0.5)),
    }
