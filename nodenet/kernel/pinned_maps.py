"""The maps of one instance: open the pinned ones, make those that are missing, check each."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nodenet import abi
from nodenet.kernel import pins
from nodenet.kernel.errors import KernelError
from nodenet.kernel.map_shape import Shape
from nodenet.kernel.maps import Map
from nodenet.paths import Instance


class SchemaMismatch(KernelError):
    """A pinned map is of another version; ``found`` and ``wanted`` describe both."""

    def __init__(self, name: str, path: Path, found: Shape | str, wanted: Shape | str) -> None:
        super().__init__(
            f"pinned map {name} is of another version ({found}; wanted {wanted}): {path}",
            hint="run: nodenet node run --upgrade-pins, or nodenet capture unenroll --all",
        )
        self.name = name
        self.path = path
        self.found = found
        self.wanted = wanted


def open_or_create_maps(instance: Instance) -> dict[str, Map]:
    """Every map of `nodenet.abi.MAPS`: the pinned one, or a new one, pinned.

    Safe to call twice and from two processes at once. Raises NoBpffs, NotPermitted,
    SchemaMismatch; maps opened so far are closed then. What ``cfg`` holds is the caller's to check.
    """
    pins.require_bpffs()
    pins.make_directory(instance.maps)
    opened: dict[str, Map] = {}
    try:
        for defn in abi.MAPS.values():
            opened[defn.name] = _open_or_create(defn, instance.maps / defn.name)
    except BaseException:
        _close(opened)
        raise
    return opened


def open_maps(instance: Instance, names: Collection[str] | None = None) -> dict[str, Map]:
    """The pinned maps, or those named, without making any; NotFound, SchemaMismatch."""
    opened: dict[str, Map] = {}
    try:
        for name in abi.MAPS if names is None else names:
            opened[name] = open_map(instance, name)
    except BaseException:
        _close(opened)
        raise
    return opened


def open_map(instance: Instance, name: str) -> Map:
    """One pinned map, checked against `nodenet.abi.MAPS`; NotFound, SchemaMismatch."""
    return _open_checked(abi.MAPS[name], instance.maps / name)


def _open_or_create(defn: abi.MapDef, path: Path) -> Map:
    if not path.exists():
        new = Map.create(defn)
        try:
            new.pin(path)
            return new
        except FileExistsError:  # another process was faster: use its map
            new.close()
        except BaseException:
            new.close()
            raise
    return _open_checked(defn, path)


def _open_checked(defn: abi.MapDef, path: Path) -> Map:
    found, wanted = Map.open(path), Shape.of(defn)
    if found.shape != wanted:
        found.close()
        raise SchemaMismatch(defn.name, path, found.shape, wanted)
    return found


def _close(maps: dict[str, Map]) -> None:
    for one in maps.values():
        one.close()
