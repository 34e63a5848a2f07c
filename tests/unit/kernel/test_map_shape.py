"""Shapes of maps, and the BTF that socket storage is created with."""

from __future__ import annotations

import pytest

from nodenet import abi
from nodenet.kernel.btf import Btf
from nodenet.kernel.map_shape import Shape, count_cpus, possible_cpus, storage_btf


def test_shape_of_a_definition() -> None:
    assert Shape.of(abi.MAPS["pods"]) == (abi.MapType.HASH, 8, abi.POD.size, 4096, 0)
    assert Shape.of(abi.MAPS["evs"]) == (abi.MapType.RINGBUF, 0, 0, abi.EVENTS_BYTES, 0)


def test_a_shape_reads_as_text() -> None:
    text = str(Shape.of(abi.MAPS["conns"]))
    assert text == f"type sk_storage, key 4, value {abi.CONN.size}, max_entries 0, flags 0x201"
    assert str(Shape(99, 1, 2, 3, 0)).startswith("type 99, key 1")


def test_only_per_cpu_values_have_slots() -> None:
    assert Shape.of(abi.MAPS["pods"]).value_stride == abi.POD.size
    stat = Shape.of(abi.MAPS["stat"])
    assert stat.per_cpu
    assert stat.value_stride == 8 * possible_cpus()
    odd = Shape(abi.MapType.PERCPU_HASH, 4, 5, 1, 0)
    assert odd.value_stride == 8 * possible_cpus()


@pytest.mark.parametrize(("ranges", "count"), [("0\n", 1), ("0-3\n", 4), ("0-1,4,8-9", 5)])
def test_cpu_lists(ranges: str, count: int) -> None:
    assert count_cpus(ranges) == count


def test_storage_btf_declares_a_struct_of_the_values_size() -> None:
    blob = storage_btf(112)
    # our own reader finds the types in it, numbered as the kernel is told
    assert Btf(blob, ["int"]).ids("int") == (1,)
    assert blob.count((112).to_bytes(4, "little")) == 2
