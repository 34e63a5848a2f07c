"""Worlds for the kernel package's own tests: an instance, its maps, sources with one piece new."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.maps import Map
from nodenet.kernel.pinned_maps import open_or_create_maps
from nodenet.kernel.spec import BpfSpec, Piece
from nodenet.paths import Instance

PIECES = Path(__file__).parent / "pieces"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own: nothing is left behind, nothing comes from before."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("NODENET_CACHE", str(directory))
    monkeypatch.delenv("NODENET_NO_CACHE", raising=False)
    return directory


@pytest.fixture(scope="module")
def _module_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def shared_cache(own_cache: Path, _module_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests of a module, where the compiler is not what is tested."""
    monkeypatch.setenv("NODENET_CACHE", _module_cache)


@pytest.fixture
def instance() -> Iterator[Instance]:
    """A random instance; its pins are removed, whatever the test left."""
    chosen = Instance(f"t-{secrets.token_hex(4)}")
    yield chosen
    if chosen.pins.exists():
        shutil.rmtree(chosen.pins)


@pytest.fixture
def maps(instance: Instance) -> Iterator[dict[str, Map]]:
    """The instance's maps, pinned and open."""
    opened = open_or_create_maps(instance)
    yield opened
    for one in opened.values():
        one.close()


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """An empty cgroup of the test's own."""
    made = Cgroup.create(cgroup2_mount() / f"nn-{secrets.token_hex(4)}")
    yield made
    made.remove()


@pytest.fixture
def sources_with() -> Callable[[str], BpfSpec]:
    """The real sources with explain.bpf.c replaced by a piece from pieces/."""

    def replaced(name: str) -> BpfSpec:
        text = (PIECES / name).read_text()
        return BpfSpec(
            tuple(
                Piece(name, text) if piece.name == "explain.bpf.c" else piece
                for piece in BpfSpec.read().pieces
            )
        )

    return replaced
