"""Describing and running loaded programs, against bpftool."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from nodenet import abi
from nodenet.errors import NotFound
from nodenet.kernel.loader import Program, load_programs
from nodenet.kernel.maps import Map
from nodenet.kernel.programs import (
    RunFailed,
    bytes_memlock,
    enable_run_stats,
    map_by_id,
    program_by_id,
    program_info,
    test_run,
)

pytestmark = [pytest.mark.root, pytest.mark.bpf]

QUESTION = bytes(16) + abi.QUERY.pack(netns=1, dir=abi.Direction.OUT, protocol=6)


@pytest.fixture
def program(maps: dict[str, Map], shared_cache: None) -> Iterator[Program]:
    with load_programs(maps, only={"nn_explain"})["nn_explain"] as loaded:
        yield loaded


def bpftool(*arguments: str) -> Any:
    said = subprocess.run(
        ["bpftool", "-j", *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(said.stdout)


def test_info_is_what_bpftool_says(program: Program) -> None:
    info = program_info(program.fd)
    said = bpftool("prog", "show", "id", str(info.id))
    assert said.pop("type") == "sched_cls"
    assert said.pop("map_ids") == list(info.map_ids)
    # the clock of the boot against the clock of the day: bpftool rounds
    assert abs(said.pop("loaded_at") - info.loaded_at) <= 1
    said.pop("bytes_memlock", None)
    for name, value in said.items():
        assert getattr(info, name) == value, name
    assert info.bytes_memlock > 0
    assert info.verified_insns > 0


def test_memory_of_a_map_is_what_bpftool_says(maps: dict[str, Map]) -> None:
    said = bpftool("map", "show", "id", str(maps["flows"].id))
    assert bytes_memlock(maps["flows"].fd) == said["bytes_memlock"] > 0


def test_objects_by_id(program: Program, maps: dict[str, Map]) -> None:
    fd = program_by_id(program.id)
    assert program_info(fd).tag == program.tag
    os.close(fd)
    with Map(map_by_id(maps["pods"].id)) as again:
        assert again.shape == maps["pods"].shape
    with pytest.raises(NotFound, match="no program with id 4000000000"):
        program_by_id(4_000_000_000)
    with pytest.raises(NotFound, match="no map with id 4000000000"):
        map_by_id(4_000_000_000)


def test_a_run_gives_the_result_and_the_packet(program: Program) -> None:
    result, packet = test_run(program.fd, QUESTION)
    assert result & 0xFF == abi.Reason.NOT_ENROLLED
    assert packet == QUESTION


def test_a_packet_that_is_too_short(program: Program) -> None:
    with pytest.raises(RunFailed) as caught:
        test_run(program.fd, bytes(4))
    assert caught.value.errno == errno.EINVAL


def test_run_statistics_count_only_while_enabled(program: Program) -> None:
    with enable_run_stats():
        test_run(program.fd, QUESTION, repeat=100)
        during = program_info(program.fd)
        assert during.run_cnt == 100
        assert during.run_time_ns > 0
