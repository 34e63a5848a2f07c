"""cgroups for real, in a cgroup of the test's own."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.errors import NotFound
from nodenet.kernel import cgroups
from nodenet.kernel.cgroups import Cgroup, CgroupBusy, CgroupGone, CgroupPaths, NotACgroup

pytestmark = [pytest.mark.root]


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = Cgroup.create(Path(f"nodenet-{secrets.token_hex(4)}"))
    yield made
    made.remove()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as child:
        yield child
        child.kill()


def test_a_cgroup_has_its_depth_and_the_inode_as_id(group: Cgroup) -> None:
    leaf = Cgroup.create(group.path / "a" / "b")
    assert (group.level, leaf.level) == (1, 3)
    assert leaf.id == leaf.path.stat().st_ino != group.id
    assert Cgroup.create(leaf.path) == leaf == Cgroup.open(Path(leaf.name.lstrip("/")))
    assert cgroups.is_cgroup2(leaf.path)


def test_processes_are_moved_and_listed(group: Cgroup, sleeper: subprocess.Popen[bytes]) -> None:
    leaf = Cgroup.create(group.path / "leaf")
    leaf.add_pid(sleeper.pid)
    assert leaf.pids() == [sleeper.pid]
    assert group.pids() == []
    assert group.pids(below=True) == [sleeper.pid]
    assert cgroups.cgroup_of(sleeper.pid) == leaf
    with pytest.raises(CgroupBusy) as raised:
        group.remove()
    assert raised.value.pids == [sleeper.pid]
    sleeper.kill()
    sleeper.wait()
    group.remove()
    group.remove()
    assert not group.path.exists()


def test_a_process_that_is_not_there_cannot_be_moved(group: Cgroup) -> None:
    with pytest.raises(NotFound, match="process 4194305: not there"):
        group.add_pid(2**22 + 1)


def test_a_cgroup_that_has_gone(group: Cgroup) -> None:
    group.remove()
    for use in (lambda: group.id, group.pids, lambda: group.add_pid(os.getpid())):
        with pytest.raises(CgroupGone):
            use()
    with pytest.raises(CgroupGone):
        Cgroup.open(group.path)


def test_nothing_is_made_outside_the_hierarchy(tmp_path: Path) -> None:
    with pytest.raises(NotACgroup, match=r"/x: not below the cgroup v2 mount, /"):
        Cgroup.create(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_usual_place_is_the_one_the_mount_table_names(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_bytes(cgroups.MOUNTS.read_bytes())
    assert cgroups.cgroup2_mount() == cgroups.cgroup2_mount(table)


def test_a_v1_directory_is_named_as_one() -> None:
    lines = Path("/proc/mounts").read_text().splitlines()
    v1 = [line.split()[1] for line in lines if line.split()[2] == "cgroup"]
    if not v1:
        pytest.skip("this host has no cgroup v1 hierarchy")
    with pytest.raises(NotACgroup) as raised:
        Cgroup.open(Path(v1[0]))
    assert raised.value.line() == (
        f"{v1[0]}: a cgroup v1 directory; nodenet needs the v2 hierarchy mounted at "
        f"{cgroups.cgroup2_mount()}"
    )


def test_an_id_leads_back_to_the_path(group: Cgroup) -> None:
    leaf = Cgroup.create(group.path / "leaf")
    paths = CgroupPaths()
    assert paths.name(leaf.id) == leaf.name
    assert paths.name(paths.mount.stat().st_ino) == "/"
    # what is done without the right to open by handle finds the same
    assert paths._walk(leaf.id) == leaf.name
    gone = leaf.id
    leaf.remove()
    assert paths.name(gone) == leaf.name, "known since before it was removed"
    assert CgroupPaths().name(gone) is None
    assert CgroupPaths()._walk(gone) is None
