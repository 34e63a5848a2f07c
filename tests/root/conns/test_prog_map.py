"""prog and map against bpftool, and dumps against what was written."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nodenet import abi
from nodenet.capture.records import ExcludedPort, PodRecord
from nodenet.capture.session import Capture
from nodenet.cli.schemas import Entry
from nodenet.kernel.netns import NetNs
from nodenet.kernel.objects import MapRow, ProgramRow
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

Enrol = Callable[..., PodRecord]
Answer = Callable[..., Any]
needs_bpftool = pytest.mark.skipif(
    shutil.which("bpftool") is None, reason="bpftool is not installed"
)


def bpftool(*words: str) -> Any:
    """What bpftool answers in JSON."""
    done = subprocess.run(
        ["bpftool", "-j", *words], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def without_drift(row: dict[str, Any]) -> dict[str, Any]:
    """Without what changes between two looks."""
    return {k: v for k, v in row.items() if k not in ("run_time_ns", "run_cnt", "loaded_at")}


@needs_bpftool
def test_programs_have_bpftools_keys_and_values(enrol: Enrol, answer: Answer) -> None:
    enrol()
    rows = answer(list[dict[str, Any]], "prog", "show")
    assert {row["name"] for row in rows} == set(abi.PROGRAMS)
    for row in rows:
        theirs = bpftool("prog", "show", "id", str(row["id"]))
        assert theirs.keys() <= row.keys()
        assert without_drift(theirs) == {k: row[k] for k in without_drift(theirs)}
        assert abs(theirs["loaded_at"] - row["loaded_at"]) <= 1
        assert row["run_cnt"] >= theirs.get("run_cnt", 0) * 0.5


@needs_bpftool
def test_maps_have_bpftools_keys_and_values(enrol: Enrol, answer: Answer) -> None:
    enrol()
    rows = answer(list[dict[str, Any]], "map", "show")
    assert [row["name"] for row in rows] == sorted(abi.MAPS)
    for row in rows:
        theirs = bpftool("map", "show", "id", str(row["id"]))
        assert theirs.keys() <= row.keys()
        assert {k: row[k] for k in theirs} == theirs, row["name"]


@needs_bpftool
def test_all_lists_what_bpftool_lists(capture: Capture, answer: Answer) -> None:
    """Others come and go meanwhile: a map of ours, and the instance's, are in both."""
    with map_of_ours() as extra:
        wanted = {extra, *(table.id for table in capture.maps.values())}
        ours = {row.id: row for row in answer(list[MapRow], "map", "show", "--all")}
        assert wanted <= ours.keys() & {row["id"] for row in bpftool("map", "show")}
        row = ours[extra]
        assert (row.name, row.schema, row.entries, row.pinned) == ("nn_test", None, None, ())
        assert ours[capture.maps["pods"].id].schema == abi.SCHEMA
    programs = {row.id: row for row in answer(list[ProgramRow], "prog", "show", "--all")}
    mine = {row.id for row in answer(list[ProgramRow], "prog", "show")}
    assert mine <= programs.keys() & {row["id"] for row in bpftool("prog", "show")}
    assert {programs[ident].schema for ident in mine} == {abi.SCHEMA}


@contextmanager
def map_of_ours() -> Iterator[int]:
    """The id of a map that belongs to no instance."""
    from nodenet.kernel.maps import Map

    definition = abi.MapDef("nn_test", abi.MapType.HASH, abi.COOKIE_KEY, abi.COUNTER, 4)
    with Map.create(definition) as table:
        yield table.id


def test_where_programs_are_attached(scene: Any, enrol: Enrol, answer: Answer) -> None:
    record = enrol()
    rows = {row.name: row for row in answer(list[ProgramRow], "prog", "show")}
    connect4, sk_lookup = rows["nn_connect4"], rows["nn_sk_lookup"]
    assert (connect4.hook, connect4.schema) == ("cgroup/connect4", abi.SCHEMA)
    assert len(connect4.link_id) == len(connect4.attach) == 1
    assert connect4.link_pinned[0].endswith("/links/connect4")
    with NetNs.open(scene.pod.path) as ns:
        assert sk_lookup.attach == (f"netns:{ns.inode}",)
    assert sk_lookup.link_pinned[0].endswith(f"/links/sk_lookup/{record.netns_cookie}")
    assert rows["nn_iter_conns"].attach == ("map:conns",)
    assert rows["nn_getsockopt"].attach[0].endswith("/ztunnel")


def test_the_table_names_the_pod(enrol: Enrol, nodenet: Callable[..., Any]) -> None:
    enrol()
    (line,) = [line for line in nodenet("prog", "show").stdout.splitlines() if "sk_lookup" in line]
    assert " t/pod " in line


def test_stats_time_the_programs(
    scene: Any, enrol: Enrol, nodenet: Callable[..., Any], instance: Instance
) -> None:
    enrol()
    command = ["prog", "show", "connect4", "--stats", "0.7s", "-j"]
    child = subprocess.Popen(
        [str(_nodenet()), "--id", instance.id or "", *command], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        while child.poll() is None:  # so long as it measures
            client, server = scene.pair()
            client.close()
            server.close()
        (row,) = json.loads(child.stdout.read())
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert row["runs"] > 0 and 20 < row["ns_per_run"] < 1_000_000 and row["cpu_percent"] > 0
    (idle,) = json.loads(nodenet("prog", "show", "connect4", "-j").stdout)
    assert (idle["runs"], idle["ns_per_run"], idle["cpu_percent"]) == (None, None, None)


def _nodenet() -> str:
    import sys
    from pathlib import Path

    return str(Path(sys.executable).with_name("nodenet"))


@needs_bpftool
def test_a_dump_in_hex_is_bpftools(capture: Capture, enrol: Enrol, answer: Answer) -> None:
    enrol(exclude_ports=(ExcludedPort("out", 9093),))
    for name in ("pods", "lips", "ports", "cfg"):
        theirs = bpftool("map", "dump", "id", str(capture.maps[name].id))
        ours = answer(list[Entry], "map", "dump", name, "--hex")
        assert ours == sorted(theirs, key=lambda entry: entry["key"])


def test_a_dump_decoded(scene: Any, enrol: Enrol, answer: Answer, nodenet: Any) -> None:
    record = enrol(exclude_ports=(ExcludedPort("in", 9093),), exclude_cidrs=("10.0.0.0/8",))
    cookie = str(record.netns_cookie)
    pods = answer(list[Entry], "map", "dump", "pods", "--key", f"netns_cookie={cookie}")
    (pod,) = pods
    assert pod["key"] == {"netns_cookie": cookie}
    assert {"out", "in", "live", "ports", "cidrs"} <= set(pod["value"]["flags"])
    assert (pod["value"]["ip4"], pod["value"]["ip6"]) == ("10.99.0.1", "fd99::1")
    assert answer(list[Entry], "map", "dump", "ports") == [
        {"key": {"netns": cookie, "port": 9093, "dir": 1}, "value": {"value": 1}}
    ]
    (cidr,) = answer(list[Entry], "map", "dump", "cidrs")
    assert (cidr["key"]["netns_be"], cidr["key"]["ip"]) == (cookie, "10.0.0.0")
    (one,) = answer(
        list[Entry], "map", "dump", "lips", "--key", f"netns={cookie}", "--key", "ip=10.99.0.1"
    )
    assert one["value"]["netns"] == cookie
    assert nodenet("map", "dump", "lips", "--count").stdout == "5\n"
    assert nodenet("map", "dump", "lips", "--count", "--key", "ip=::9").stdout == "0\n"
    limited = nodenet("map", "dump", "lips", "--limit", "1")
    assert limited.stdout.count("\n") == 2
    assert limited.stderr == "nodenet: 4 of 5 left out (--limit 1)\n"


def test_per_cpu_maps_and_counts(scene: Any, enrol: Enrol, answer: Answer) -> None:
    enrol()
    client, _server = scene.pair()
    (total,) = answer(list[Entry], "map", "dump", "agg")
    assert total["key"]["reason"] == "proxy-down"
    assert sum(part["value"]["opened"] for part in total["values"]) == 1
    rows = {row.name: row for row in answer(list[MapRow], "map", "show")}
    assert (rows["conns"].entries, rows["closed"].entries, rows["agg"].entries) == (1, 0, 1)
    assert (rows["evs"].entries, rows["conns"].fill) == (None, None)
    pods = rows["pods"]
    assert pods.entries and pods.fill == round(100 * pods.entries / pods.max_entries, 2)
    client.shutdown(socket.SHUT_RDWR)
    assert [row.name for row in answer(list[MapRow], "map", "show", "closed")] == ["closed"]
