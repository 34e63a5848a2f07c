"""The state file and the lock of a lab."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import msgspec
import pytest

from nodenet.errors import NotFound
from nodenet.lab.plan import Family, make_plan
from nodenet.lab.state import (
    LabDir,
    LabState,
    ProcessRecord,
    StateBroken,
    every_lab,
    pod_places,
    state_of,
)
from nodenet.paths import Instance


@pytest.fixture
def directory(tmp_path: Path) -> LabDir:
    return LabDir("x", tmp_path / "run" / "lab")


def _state() -> LabState:
    plan = make_plan(instance_id="x", nodes=3, family=Family.V6, backend="iptables", enroll=False)
    return state_of(plan, now=5.0, cgroup=Path("/cg/nodenet-x"))


def test_state_comes_back_and_makes_the_same_plan(directory: LabDir) -> None:
    process = ProcessRecord(role="proxy", host="n1", pid=7, start_ticks=9, log="/l")
    state = msgspec.structs.replace(_state(), processes=(process,))
    directory.write(state)
    assert directory.read() == state
    assert directory.require().plan() == make_plan(
        instance_id="x", nodes=3, family=Family.V6, backend="iptables", enroll=False
    )
    assert state.namespaces[0] == "nn-x-net"
    assert len(state.namespaces) == 1 + 3 + 6


@pytest.mark.parametrize("mesh", [True, False])
def test_the_mode_is_part_of_what_comes_back(directory: LabDir, mesh: bool) -> None:
    plan = make_plan(instance_id="x", mesh=mesh)
    directory.write(state_of(plan, now=5.0, cgroup=None))
    assert directory.require().plan() == plan
    assert directory.require().plan() != make_plan(instance_id="x", mesh=not mesh)


def test_a_state_from_before_there_was_a_mesh_is_of_a_plain_lab(directory: LabDir) -> None:
    plan = make_plan(instance_id="x", mesh=False)
    directory.write(state_of(plan, now=5.0, cgroup=None))
    text = directory.state_path.read_text()
    older = re.sub(r'\n\s*"mesh": false,', "", text)
    assert older != text
    directory.state_path.write_text(older)
    assert directory.require().plan() == plan


def test_no_lab(directory: LabDir) -> None:
    assert directory.read() is None
    with pytest.raises(NotFound) as caught:
        directory.require()
    assert caught.value.exit_code == 4
    assert caught.value.line() == (
        f"lab is not up: no {directory.path}; run: sudo nodenet lab up --id x"
    )


def test_the_documented_error_of_the_default_lab() -> None:
    with pytest.raises(NotFound) as caught:
        LabDir("default", Path("/nonexistent/nodenet/lab")).require()
    assert caught.value.line().endswith("; run: sudo nodenet lab up")


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema":1}', b"[]"])
def test_broken_state_is_an_error_that_says_what_to_do(directory: LabDir, content: bytes) -> None:
    directory.path.mkdir(parents=True)
    directory.state_path.write_bytes(content)
    with pytest.raises(StateBroken, match="cannot be read"):
        directory.read()


def test_state_of_another_schema(directory: LabDir) -> None:
    directory.write(msgspec.structs.replace(_state(), schema=99))
    with pytest.raises(StateBroken, match="schema 99, not 1"):
        directory.read()


def test_remove_leaves_nothing_but_the_root(directory: LabDir) -> None:
    directory.write(_state())
    directory.hosts_path.write_text("x")
    directory.logs.mkdir()
    (directory.logs / "a1.log").write_text("x")
    directory.mesh_path.parent.mkdir()
    directory.mesh_path.write_text("x")
    directory.ca_path.mkdir()
    (directory.ca_path / "authority.pem").write_text("x")
    directory.capture_path.write_bytes(b"x")
    directory.remove()
    directory.remove()
    assert list(directory.root.iterdir()) == []


def test_the_lock_file_goes_with_the_lab(directory: LabDir) -> None:
    with directory.locked():
        directory.write(_state())
    assert (directory.root / ".x.lock").exists()
    with directory.locked():
        directory.remove()
    assert not directory.root.parent.exists()


def test_one_at_a_time_and_the_waiter_sees_the_result(directory: LabDir) -> None:
    """The second gets the lock although the first removed the lock file it waited on."""
    waiting, order = threading.Event(), []

    def second() -> None:
        with directory.locked(waiting.set):
            order.append(("second", directory.read() is None))

    with directory.locked():
        directory.write(_state())
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(60)
        order.append(("first", directory.read() is not None))
        directory.remove()
    thread.join(60)
    assert order == [("first", True), ("second", True)]
    assert not directory.root.exists()


def test_labs_and_their_pods_are_listed(directory: LabDir) -> None:
    assert every_lab(directory.root) == []
    directory.write(_state())
    LabDir("y", directory.root).path.mkdir()
    LabDir("y", directory.root).state_path.write_text("broken")
    assert every_lab(directory.root) == ["x", "y"]
    found = pod_places(root=directory.root)
    assert [(p.name, p.netns.name, p.node, p.node_number) for p in found][:3] == [
        ("lab/a1", "nn-x-a1", "n1", 1),
        ("lab/b1", "nn-x-b1", "n1", 1),
        ("lab/a2", "nn-x-a2", "n2", 2),
    ]
    assert len(found) == 6
    assert pod_places(Instance("x"), directory.root) == found
    assert pod_places(Instance("z"), directory.root) == []
