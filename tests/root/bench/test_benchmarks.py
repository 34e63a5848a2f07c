"""The benchmarks run to their end and print what they promise; no figure is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench._load import Load, LoadFailed, Side
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.netns import RUN_NETNS
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import BPFFS, RUN
from tests.root.dialling import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    with Load() as compiled:
        yield compiled


def run(*argv: str) -> dict[str, Any]:
    """The JSON document of a quick run of one round."""
    few = ("-j", "--quick", "--rounds", "1", "--ms", "20")
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{argv[0]}", *few, *argv[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["ok"] is True
    assert document["bench"] == argv[0]
    assert all(row["min"] <= row["median"] <= row["max"] for row in document["rows"])
    assert all(set(floor) == {"name", "wanted", "got", "ok"} for floor in document["floors"])
    return document


def shapes(document: dict[str, Any]) -> dict[str, set[str]]:
    """Scene to its variants."""
    found: dict[str, set[str]] = {}
    for row in document["rows"]:
        found.setdefault(row["scene"], set()).add(row["variant"])
    return found


def test_capture_in_the_kernel() -> None:
    document = run("capture", "--only", "kernel")
    variants = {"none", "iptables", "attached", "ebpf"}
    assert shapes(document) == {"outbound": variants, "inbound": variants}
    assert len(document["floors"]) == 8


def test_capture_through_the_proxy() -> None:
    document = run("capture", "--only", "proxy")
    variants = {"none", "iptables", "ebpf"}
    assert shapes(document) == {
        "outbound through ztunnel": variants,
        "inbound through ztunnel": variants,
    }


def test_many_pods() -> None:
    document = run("capture", "--only", "pods", "--pods", "5")
    assert shapes(document) == {"enrolled pods": {"1 pod", "5 pods"}}


def test_cost_of_the_statistics() -> None:
    document = run("stats", "--only", "cost")
    variants = {"none", "attached", "recorded", "watched"}
    assert shapes(document) == {
        "opened by the pod": variants,
        "accepted by the pod": variants,
    }


def test_reading() -> None:
    document = run("stats", "--only", "maps", "--only", "listing")
    assert shapes(document) == {
        "whole map, 152 B values": {"nodenet", "bpftool"},
        "open connections": {"nodenet"},
    }


def test_relay() -> None:
    document = run("relay", "--only", "bulk", "--only", "trips", "--only", "connections")
    scenes = shapes(document)
    assert len(scenes) == 9
    assert all(found == {"direct", "haproxy", "ztunnel"} for found in scenes.values())
    assert len(document["floors"]) == 15


def test_relay_of_idle_connections() -> None:
    document = run("relay", "--only", "idle")
    assert shapes(document) == {"idle connections": {"haproxy", "ztunnel"}}
    held = {r["median"] for r in document["rows"] if r["measure"] == "held, and alive after it"}
    assert held == {2000}


def test_told_to_stop_it_leaves_nothing() -> None:
    argv = [sys.executable, "-m", "bench.capture", "--only", "kernel"]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "round 1" in process.stderr.readline()
        # somewhere in its first round
        while (made := made_by(process.pid)) is None:
            assert process.poll() is None
        process.terminate()
        process.stderr.read()
        assert process.wait(60) == 143
    assert not left_of(made)


def made_by(pid: int) -> str | None:
    """The id of the instance that a child of the benchmark names in its arguments, if any."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        except OSError:
            continue
        for word in words:
            if word.startswith("server_cgroup="):
                return word.split("=", 1)[1]
    return None


def left_of(cgroup: str) -> list[Path]:
    """What is there of the run whose cgroup that was."""
    ident = Path(cgroup).parts[-2].removeprefix("nodenet-").removesuffix("-ipt")
    places = (BPFFS, RUN, cgroup2_mount(), RUN_NETNS)
    return [path for place in places for path in place.glob(f"*{ident}*")]


def test_a_refused_connection_is_an_error_that_names_it(load: Load) -> None:
    with Topology() as topology:
        here = topology.namespace("one")
        side = Side(netns=here.path, cpu=min(os.sched_getaffinity(0)))
        with pytest.raises(LoadFailed, match="connect: Connection refused"):
            load.run("conn", client=side, dial="127.0.0.1:1", milliseconds=10)


@pytest.mark.parametrize("mode", ["conn", "rtt", "bulk"])
@pytest.mark.parametrize("address", ["127.0.0.1:8080", "[::1]:8080"])
def test_the_generator_counts_what_it_did(load: Load, mode: Any, address: str) -> None:
    with Topology() as topology:
        here = topology.namespace("one")
        side = Side(netns=here.path, cpu=min(os.sched_getaffinity(0)))
        sample = load.run(
            mode, client=side, server=side, dial=address, listen=address, milliseconds=20
        )
    assert sample.count > 0
    assert sample.elapsed_ns >= 20_000_000
    assert (sample.bytes > 0) == (mode == "bulk")
    assert (sample.p50_ns > 0) == (mode != "bulk")


def test_held_connections_are_open_in_the_block_only(load: Load) -> None:
    with Topology() as topology:
        here = topology.namespace("one")
        side = Side(netns=here.path, cpu=min(os.sched_getaffinity(0)))
        with load.holding(20, where=side, address="127.0.0.1:8080"):
            wait_for(lambda: len(established(here)) == 40, "both ends of each")
        wait_for(lambda: not established(here), "no connection is left")


def established(where: Namespace) -> list[str]:
    """The connections of a namespace, each end a line."""
    return where.run("ss", "-Htn", "state", "established").stdout.splitlines()


def test_the_server_is_in_the_cgroup_it_was_given(load: Load) -> None:
    with Topology() as topology:
        here = topology.namespace("one")
        group = Cgroup.create(Path(f"{here.name}-load"))
        try:
            cpu = min(os.sched_getaffinity(0))
            load.run(
                "conn",
                client=Side(netns=here.path, cpu=cpu),
                server=Side(netns=here.path, cpu=cpu, cgroup=group.path),
                dial="127.0.0.1:8080",
                listen="127.0.0.1:8080",
                milliseconds=10,
            )
            used = dict(map(str.split, (group.path / "cpu.stat").read_text().splitlines()))
            assert int(used["usage_usec"]) > 0
        finally:
            group.remove()
