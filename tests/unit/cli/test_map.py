"""nodenet map: columns and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nodenet import abi
from nodenet.cli import map as map_module
from nodenet.cli.style import Style
from nodenet.cli.tables import render_table
from nodenet.errors import NotFound
from nodenet.kernel.mapdump import Key
from nodenet.kernel.objects import MapRow

NOBODY = "nn-nobody"
CLOSED = MapRow(
    id=467, type="array", name="closed", flags=0, bytes_key=4, bytes_value=184, max_entries=16384,
    bytes_memlock=3_014_984, frozen=0, btf_id=None, pids=(), pinned=("/x/closed",), entries=8192,
    fill=50.0, evicted=None, schema=1,
)  # fmt: skip


def test_show_columns() -> None:
    header, row = render_table([CLOSED], map_module.COLUMNS, Style()).splitlines()
    assert header.split() == "ID NAME TYPE KEY VALUE ENTRIES MAX FILL% MEM EVICTED".split()
    assert row.split() == "467 closed array 4 184 8192 16384 50.0 2.9M -".split()


def test_one_by_name_or_id() -> None:
    assert map_module._chosen([CLOSED], "467") == map_module._chosen([CLOSED], "closed") == [CLOSED]
    with pytest.raises(NotFound) as raised:
        map_module._chosen([CLOSED], "open")
    assert raised.value.line() == "no map open; there are: closed"


def test_dump_columns_of_a_plain_map() -> None:
    definition = abi.MAPS["lips"]
    entry = {
        "key": Key(netns="41", ip="10.42.1.7"),
        "value": {"netns": "41", "pod_id": 7, "node_id": 1},
    }
    columns = map_module._columns(definition, per_cpu=False)
    header, row = render_table([entry], columns, Style()).splitlines()
    assert [c.title for c in columns] == ["KEY netns", "ip", "VALUE netns", "pod_id", "node_id"]
    assert header.startswith("KEY netns  ip         VALUE netns")
    assert row.split() == ["41", "10.42.1.7", "41", "7", "1"]


def test_dump_of_a_per_cpu_map_is_summed() -> None:
    entry = {
        "key": Key(index=64, name="events-lost"),
        "values": [{"cpu": 0, "value": {"value": 3}}, {"cpu": 1, "value": {"value": 4}}],
    }
    columns = map_module._columns(abi.MAPS["stat"], per_cpu=True)
    assert [c.title for c in columns] == ["KEY index", "name", "SUM value"]
    row = render_table([entry], columns, Style()).splitlines()[1]
    assert row.split() == ["64", "events-lost", "7"]


def test_dump_as_bytes() -> None:
    entry = {"key": ("0x0a", "0xff"), "value": ("0x00", "0x01")}
    row = render_table([entry], map_module._hex_columns(), Style()).splitlines()[1]
    assert row == "0a ff  00 01"
    per_cpu = {"key": ("0x0a",), "values": [{"cpu": n, "value": ("0x01",)} for n in (0, 1)]}
    assert render_table([per_cpu], map_module._hex_columns(), Style()).endswith("01 | 01\n")


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (
            ["map", "dump", "nmae"],
            4,
            "nodenet: no map nmae; nodenet has: agg byp cfg cidrs closed conns dnsd evs flows lips "
            "live lsn pods ports stat watch",
        ),
        (
            ["map", "dump", "evs"],
            2,
            "nodenet: map evs is a ring buffer and cannot be dumped; use: nodenet conn watch",
        ),
        (
            ["map", "show", "pods"],
            4,
            "nodenet: no map pods",
        ),
    ],
)
def test_refusals(cli: Callable[..., Any], words: list[str], status: int, error: str) -> None:
    outcome = cli("--id", NOBODY, *words)
    assert (outcome.status, outcome.err.strip()) == (status, error)


@pytest.mark.parametrize("condition", ["ip", "=7", ""])
def test_a_condition_has_a_field_and_a_value(condition: str) -> None:
    with pytest.raises(Exception, match="not FIELD=VALUE"):
        map_module._parsed([condition])


def test_conditions() -> None:
    assert map_module._parsed(["ip=fd42::7", "x=a=b"]) == {"ip": "fd42::7", "x": "a=b"}


def test_nothing_loaded_is_an_empty_list(cli: Callable[..., Any]) -> None:
    outcome = cli("--id", NOBODY, "map", "show", "-j")
    assert (outcome.status, outcome.json) == (0, [])
    assert cli("--id", NOBODY, "map", "show", "--fail-empty").status == 4
