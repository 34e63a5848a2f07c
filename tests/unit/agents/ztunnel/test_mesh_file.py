"""The mesh file: in force when it is good, and what was known when it is not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.agents.ztunnel import mesh_file as module
from nodenet.agents.ztunnel.mesh_file import MeshFile
from nodenet.errors import NodenetError
from nodenet.mesh import static_file
from nodenet.mesh.state import MeshState

Until = Callable[[Callable[[], object]], None]

GOOD = "workloads:\n- {name: a, namespace: ns, workloadIps: [10.0.0.1]}\n"
BETTER = GOOD + "- {name: b, namespace: ns, workloadIps: [10.0.0.2]}\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is read after a moment."""
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.01)


@pytest.fixture
def state() -> MeshState:
    return MeshState(node="")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "mesh.yaml"
    made.write_text(GOOD)
    return made


@pytest.fixture
def file(loop: asyncio.AbstractEventLoop, path: Path, state: MeshState) -> Iterator[MeshFile]:
    made = MeshFile(loop, path, state)
    made.start()
    yield made
    made.close()


def known(state: MeshState) -> set[str]:
    """Which of the workloads of these tests are in the state."""
    return {n for n in "abc" if state.workload(f"Kubernetes//Pod/ns/{n}") is not None}


def replace(path: Path, text: str) -> None:
    """As editors do it."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)


def test_what_the_file_says_is_known(file: MeshFile, state: MeshState) -> None:
    assert known(state) == {"a"}
    assert file.error is None and file.loads == 1 and file.loaded_ns > 0
    assert [w.name for w in file.mesh.workloads] == ["a"]


@pytest.mark.parametrize("text", ["", "nonsense: 1\n", "workloads: [", "workloads: 7\n"])
def test_it_must_be_good_at_the_start(
    loop: asyncio.AbstractEventLoop, path: Path, state: MeshState, text: str
) -> None:
    path.write_text(text)
    file = MeshFile(loop, path, state)
    if text:
        with pytest.raises(NodenetError, match=r"mesh\.yaml"):
            file.start()
    else:
        file.start()  # a mesh of nobody
    file.close()
    assert known(state) == set()


def test_it_must_be_there_at_the_start(
    loop: asyncio.AbstractEventLoop, path: Path, state: MeshState
) -> None:
    path.unlink()
    file = MeshFile(loop, path, state)
    with pytest.raises(NodenetError, match=r"mesh\.yaml"):
        file.start()
    file.close()


@pytest.mark.parametrize("how", ["in place", "by rename"])
def test_a_change_comes_into_force(
    file: MeshFile, state: MeshState, path: Path, until: Until, how: str
) -> None:
    if how == "in place":
        path.write_text(BETTER)
    else:
        replace(path, BETTER)
    until(lambda: known(state) == {"a", "b"})
    replace(path, "workloads: []\n")
    until(lambda: known(state) == set())
    assert file.loads == 3


def test_a_fault_changes_nothing_and_is_said_once(
    file: MeshFile,
    state: MeshState,
    path: Path,
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            replace(path, BETTER + "unknown: 1\n")
            until(lambda: file.error is not None)
        assert file.error is not None and "mesh.yaml:4" in file.error and "unknown" in file.error
        assert known(state) == {"a"} and file.loads == 1
        replace(path, BETTER)
        until(lambda: file.error is None)
        assert known(state) == {"a", "b"}
    said = [record.message for record in caplog.records]
    assert len([line for line in said if "not in force" in line]) == 1
    assert len([line for line in said if "is in force" in line]) == 1


def test_a_file_that_goes_changes_nothing(
    file: MeshFile, state: MeshState, path: Path, until: Until
) -> None:
    path.unlink()
    until(lambda: file.error is not None)
    assert known(state) == {"a"}
    path.write_text(GOOD)
    until(lambda: file.error is None)
    assert file.loads == 1  # it says what it said before


def test_other_files_do_not_matter(file: MeshFile, state: MeshState, path: Path) -> None:
    """They are read about, and nothing comes of it."""
    version = state.version
    (path.parent / "other.yaml").write_text("nonsense")
    file._loop.run_until_complete(asyncio.sleep(0.1))
    assert file.error is None and state.version == version and file.loads == 1


def test_a_link_that_is_moved(
    loop: asyncio.AbstractEventLoop, tmp_path: Path, state: MeshState, until: Until
) -> None:
    """As a ConfigMap is mounted: the directory's link is replaced."""
    for name, text in (("one", GOOD), ("two", BETTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mesh.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "mesh.yaml").symlink_to("..data/mesh.yaml")
    file = MeshFile(loop, tmp_path / "mesh.yaml", state)
    file.start()
    try:
        (tmp_path / "..new").symlink_to("two")
        os.replace(tmp_path / "..new", tmp_path / "..data")
        until(lambda: known(state) == {"a", "b"})
    finally:
        file.close()


def test_others_that_write_all_the_time_do_not_hold_it_up(
    file: MeshFile,
    state: MeshState,
    path: Path,
    until: Until,
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.1)
    replace(path, BETTER)
    other = path.with_name("log")

    def known_while_others_write() -> bool:
        other.write_text(str(loop.time()))
        return known(state) == {"a", "b"}

    until(known_while_others_write)


def test_a_file_that_is_the_same_is_not_read_again(
    file: MeshFile, path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    load = static_file.load

    def counting(read: Path) -> object:
        reads.append(read)
        return load(read)

    monkeypatch.setattr(static_file, "load", counting)
    path.with_name("log").write_text("something else")
    file._loop.run_until_complete(asyncio.sleep(0.1))
    assert not reads
    replace(path, BETTER)
    until(lambda: file.loads == 2)
    assert len(reads) == 1


def test_connections_go_on_while_a_large_file_is_read(
    file: MeshFile,
    state: MeshState,
    path: Path,
    until: Until,
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = static_file.load
    goes_on = threading.Event()

    def slow(read: Path) -> object:
        assert goes_on.wait(60), "the loop stands still"
        return load(read)

    monkeypatch.setattr(static_file, "load", slow)
    replace(path, BETTER)
    until(lambda: file._reading)
    goes_on.set()
    until(lambda: known(state) == {"a", "b"})
