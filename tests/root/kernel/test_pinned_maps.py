"""The maps of an instance: made once, opened ever after, refused when of another version."""

from __future__ import annotations

import os
import threading

import pytest

from nodenet import abi
from nodenet.errors import NotFound
from nodenet.kernel.map_shape import Shape
from nodenet.kernel.maps import Map
from nodenet.kernel.pinned_maps import (
    SchemaMismatch,
    open_map,
    open_maps,
    open_or_create_maps,
)
from nodenet.kernel.pins import ForeignDirectory
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]


def close(maps: dict[str, Map]) -> None:
    for one in maps.values():
        one.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_every_map_is_made_as_declared_and_pinned(instance: Instance) -> None:
    maps = open_or_create_maps(instance)
    try:
        assert maps.keys() == abi.MAPS.keys()
        for name, one in maps.items():
            assert one.shape == Shape.of(abi.MAPS[name])
            assert one.name == name
        assert {p.name for p in instance.maps.iterdir()} == abi.MAPS.keys()
        assert (instance.maps / "cfg").stat().st_mode & 0o077 == 0
    finally:
        close(maps)


def test_the_second_time_the_same_maps_are_opened(instance: Instance) -> None:
    first = open_or_create_maps(instance)
    key = abi.NETNS_KEY.pack(netns_cookie=7)
    first["pods"].update(key, abi.POD.pack(id=9))
    ids = {name: one.id for name, one in first.items()}
    close(first)
    second = open_or_create_maps(instance)
    try:
        assert {name: one.id for name, one in second.items()} == ids
        assert second["pods"].lookup(key) == abi.POD.pack(id=9)
    finally:
        close(second)


def test_a_half_made_instance_is_completed(instance: Instance) -> None:
    close(open_or_create_maps(instance))
    (instance.maps / "byp").unlink()
    maps = open_or_create_maps(instance)
    close(maps)
    assert (instance.maps / "byp").exists()


def test_two_at_once_end_up_with_the_same_maps(instance: Instance) -> None:
    start = threading.Barrier(2)
    ids: list[dict[str, int]] = []

    def run() -> None:
        start.wait()
        maps = open_or_create_maps(instance)
        ids.append({name: one.id for name, one in maps.items()})
        close(maps)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(ids) == 2
    assert ids[0] == ids[1]


def test_a_map_of_another_version_is_refused(instance: Instance) -> None:
    instance.maps.mkdir(parents=True)
    path = instance.maps / "pods"
    with Map.create(abi.MAPS["pods"]._replace(value=abi.LIP)) as other:
        other.pin(path)
    before = descriptors()
    with pytest.raises(SchemaMismatch) as caught:
        open_or_create_maps(instance)
    assert descriptors() == before, "maps opened before the refusal stay open"
    assert (caught.value.name, caught.value.path) == ("pods", path)
    assert caught.value.found == Shape.of(abi.MAPS["pods"])._replace(value_size=abi.LIP.size)
    assert caught.value.line() == (
        "pinned map pods is of another version (type hash, key 8, value 16, max_entries 4096, "
        f"flags 0x0; wanted type hash, key 8, value {abi.POD.size}, max_entries 4096, flags 0x0): "
        f"{path}; run: nodenet node run --upgrade-pins, or nodenet capture unenroll --all"
    )
    with pytest.raises(SchemaMismatch):
        open_map(instance, "pods")


def test_a_directory_that_somebody_else_made_is_not_used(instance: Instance) -> None:
    # everybody may make directories in bpffs, and whoever owns one can swap what is in it
    instance.pins.mkdir()
    os.chown(instance.pins, 65534, 65534)
    with pytest.raises(ForeignDirectory) as caught:
        open_or_create_maps(instance)
    assert caught.value.line() == (
        f"directory of pins belongs to uid 65534: {instance.pins}; "
        f"look at it, then: rm -r {instance.pins}"
    )
    os.chown(instance.pins, 0, 0)
    instance.pins.chmod(0o777)
    with pytest.raises(ForeignDirectory, match="may be written by others"):
        open_or_create_maps(instance)


def test_opening_makes_nothing(instance: Instance) -> None:
    with pytest.raises(NotFound, match=str(instance.maps / "cfg")):
        open_maps(instance)
    assert not instance.pins.exists()


def test_only_those_asked_for(instance: Instance) -> None:
    close(open_or_create_maps(instance))
    some = open_maps(instance, ["stat", "agg"])
    close(some)
    assert list(some) == ["stat", "agg"]
