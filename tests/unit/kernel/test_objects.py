"""Rows of programs and maps that need no kernel."""

from __future__ import annotations

import os

import msgspec

from nodenet import abi
from nodenet.kernel.objects import (
    MAP_TYPES,
    PROG_TYPES,
    Holder,
    ProgramRow,
    find_holders,
    instance_maps,
    instance_programs,
    measured,
    read_schema,
)
from nodenet.paths import Instance

NOBODY = Instance("nn-nobody")
ROW = ProgramRow(
    id=112, type="cgroup_sock_addr", name="nn_connect4", tag="3f888cfa5de52cd7",
    gpl_compatible=True, run_time_ns=1000, run_cnt=10, recursion_misses=0, loaded_at=1, uid=0,
    bytes_xlated=8, jited=True, bytes_jited=8, bytes_memlock=4096, map_ids=(1,), btf_id=None,
    pids=(), pinned=(), hook="cgroup/connect4", attach=("/sys/fs/cgroup",), link_id=(12,),
    link_pinned=(), schema=1, loaded_at_time="1970-01-01T00:00:01.000000Z",
)  # fmt: skip


def test_type_names_are_those_of_the_header() -> None:
    """Numbers as in linux/bpf.h, which `nodenet.abi` has for the types used."""
    assert PROG_TYPES[18] == "cgroup_sock_addr" and PROG_TYPES[30] == "sk_lookup"
    assert PROG_TYPES[25] == "cgroup_sockopt" and PROG_TYPES[13] == "sock_ops"
    for kind in abi.MapType:
        assert MAP_TYPES[kind] == kind.name.lower()


def test_what_programs_did_between_two_looks() -> None:
    later = msgspec.structs.replace(ROW, run_time_ns=501_000, run_cnt=1010)
    new = msgspec.structs.replace(ROW, id=113)
    first, second = measured([ROW], [later, new], 2.0)
    assert (first.runs, first.ns_per_run, first.cpu_percent) == (1000, 500, 0.025)
    assert (second.runs, second.ns_per_run, second.cpu_percent) == (None, None, None)
    (idle,) = measured([ROW], [ROW], 2.0)
    assert (idle.runs, idle.ns_per_run, idle.cpu_percent) == (0, None, 0.0)


def test_an_instance_that_is_not_there_has_nothing() -> None:
    assert read_schema(NOBODY) is None
    assert instance_programs(NOBODY, None, str) == []
    assert instance_maps(NOBODY, None) == []


def test_holders_are_other_processes() -> None:
    for holders in find_holders("prog").values():
        assert all(isinstance(h, Holder) and h.pid != os.getpid() for h in holders)
