"""What follows from the runs of `bench.relay`: measures, floors, the proxies' configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import _relay_idle as idle
from bench import _relay_scene as scene
from bench import relay
from bench._load import Sample
from bench._relay_proxies import haproxy_config
from bench._samples import Samples

SAMPLE = Sample(
    count=900,
    total=1000,
    elapsed_ns=100_000_000,
    bytes=0,
    client_cpu_ns=1,
    server_cpu_ns=1,
    client_switches=0,
    p50_ns=80_000,
    p99_ns=200_000,
    reply_p50_ns=300_000,
    reply_p99_ns=900_000,
)


def medians(scene_: scene.Scene, sample: Sample, used: tuple[int, int] | None) -> dict[str, float]:
    samples = Samples()
    scene.record(samples, scene_, "ztunnel", sample, used)
    return {f"{row.measure} {row.unit}": row.median for row in samples.rows()}


def test_bulk_is_in_bits_and_its_cpu_by_10_9_bytes() -> None:
    sample = msgspec.structs.replace(SAMPLE, bytes=50_000_000)
    assert medians(scene.BULK[0], sample, (20_000_000, 30_000_000)) == {
        "throughput Gbit/s": pytest.approx(4.0),
        "outbound proxy CPU s/GB": pytest.approx(0.4),
        "inbound proxy CPU s/GB": pytest.approx(0.6),
        "CPU of both proxies s/GB": pytest.approx(1.0),
    }


def test_cpu_of_a_round_trip_is_that_of_all_also_of_the_warm_up() -> None:
    assert medians(scene.TRIPS[0], SAMPLE, (40_000_000, 30_000_000)) == {
        "a second 1/s": pytest.approx(9000),
        "p50 us": 80.0,
        "p99 us": 200.0,
        "outbound proxy CPU us": pytest.approx(40),
        "inbound proxy CPU us": pytest.approx(30),
        "CPU of both proxies us": pytest.approx(70),
    }


def test_a_new_connection_counts_until_its_first_byte() -> None:
    assert medians(scene.NEW, SAMPLE, None) == {
        "a second 1/s": pytest.approx(9000),
        "first byte p50 us": 300.0,
        "first byte p99 us": 900.0,
    }


def test_scenes_are_told_apart_by_their_names() -> None:
    every = [*scene.BULK, *scene.TRIPS, scene.NEW]
    assert len({each.name for each in every}) == len(every) == 9
    assert [each.name for each in every if each.on_one_cpu] == [
        "64 B round trip, 1 connection",
        "1 KiB round trip, 1 connection",
    ]


def filled() -> Samples:
    """ztunnel is twice as good as HAProxy in everything, and at the floor where it stands alone."""
    samples = Samples(baseline=scene.HAPROXY)
    for variant, good in ((scene.HAPROXY, 1.0), (scene.ZTUNNEL, 2.0)):
        for each in (*scene.BULK, *scene.TRIPS):
            samples.record(each.name, scene.THROUGHPUT, "Gbit/s", variant, good)
            samples.record(each.name, scene.CPU, "s/GB", variant, 1 / good)
            samples.record(each.name, scene.P50, "us", variant, 1 / good)
    samples.record(scene.NEW.name, scene.RATE, "1/s", scene.ZTUNNEL, 2500)
    for measure in (idle.OUTBOUND_MEMORY, idle.INBOUND_MEMORY):
        samples.record(idle.SCENE, measure, "KiB", scene.ZTUNNEL, 40)
    return samples


def test_floors_of_all_sections() -> None:
    floors = relay.floors(filled(), frozenset(relay.SECTIONS))
    assert all(floor.ok for floor in floors)
    assert {(floor.sense, floor.wanted, floor.got) for floor in floors} == {
        (">=", 0.9, 2.0),
        ("<=", 1.3, 0.5),
        ("<=", 1.5, 0.5),
        (">=", 2500, 2500),
        ("<=", 40, 40),
    }
    assert len(floors) == 4 + 4 + 2 + 4 + 1 + 2


@pytest.mark.parametrize(
    ("section", "count"), [("bulk", 8), ("trips", 6), ("connections", 1), ("idle", 2)]
)
def test_floors_of_a_section_that_was_measured(section: str, count: int) -> None:
    assert len(relay.floors(filled(), frozenset({section}))) == count


def test_haproxy_has_one_thread_and_tls_1_3() -> None:
    text = haproxy_config("10.0.0.2:15008 ssl crt a.pem", "10.0.0.2:8080", Path("/x/y.sock"), 900)
    words = [line.split() for line in text.splitlines()]
    assert ["nbthread", "1"] in words
    assert ["maxconn", "900"] in words
    assert ["ssl-default-bind-options", "ssl-min-ver", "TLSv1.3"] in words
    assert ["bind", "10.0.0.2:15008", "ssl", "crt", "a.pem"] in words
    assert ["server", "next", "10.0.0.2:8080"] in words
