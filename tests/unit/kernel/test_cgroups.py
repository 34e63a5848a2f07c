"""Finding the v2 hierarchy and reading cgroup files, on mount tables that tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodenet.errors import NotFound, NotSupported
from nodenet.kernel import cgroups


def table(tmp_path: Path, *lines: str) -> Path:
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\n" + "".join(f"{line}\n" for line in lines))
    return mounts


def test_the_v2_mount_is_found_wherever_it_is(tmp_path: Path) -> None:
    root = tmp_path / "a b"
    root.mkdir()
    escaped = str(root).replace(" ", "\\040")
    mounts = table(
        tmp_path, "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0", f"cgroup2 {escaped} cgroup2 rw 0 0"
    )
    assert cgroups.cgroup2_mount(mounts) == root


def test_no_mount_says_how_to_make_one(tmp_path: Path) -> None:
    mounts = table(tmp_path, "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0")
    with pytest.raises(cgroups.Cgroup2Missing) as raised:
        cgroups.cgroup2_mount(mounts)
    line = f"no cgroup2 mount in {mounts}; mount -t cgroup2 none /sys/fs/cgroup"
    assert raised.value.line() == line
    assert raised.value.exit_code == NotSupported.exit_code == 3


def test_a_mount_inside_a_cgroup_namespace_is_passed_over(tmp_path: Path) -> None:
    inner, true_root = tmp_path / "inner", tmp_path / "root"
    inner.mkdir()
    true_root.mkdir()
    (inner / "cgroup.type").write_text("domain\n")
    only_inner = table(tmp_path, f"cgroup2 {inner} cgroup2 rw 0 0")
    with pytest.raises(cgroups.Cgroup2Missing, match="the root of a cgroup namespace"):
        cgroups.cgroup2_mount(only_inner)
    both = table(tmp_path, f"cgroup2 {inner} cgroup2 rw 0 0", f"cgroup2 {true_root} cgroup2 rw 0 0")
    assert cgroups.cgroup2_mount(both) == true_root


def test_depth_and_name_follow_from_the_path() -> None:
    mount = Path("/sys/fs/cgroup")
    root, leaf = cgroups.Cgroup(mount, mount), cgroups.Cgroup(mount / "a" / "b", mount)
    assert (root.level, root.name) == (0, "/")
    assert (leaf.level, leaf.name) == (2, "/a/b")


def test_what_is_no_cgroup_is_said_to_be_none(tmp_path: Path) -> None:
    assert not cgroups.is_cgroup2(tmp_path)
    assert not cgroups.is_cgroup2(tmp_path / "missing")
    with pytest.raises(cgroups.CgroupGone) as raised:
        cgroups.require_cgroup2(tmp_path / "missing")
    assert raised.value.exit_code == NotFound.exit_code


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="process 4194305: not there"):
        cgroups.cgroup_of(2**22 + 1, tmp_path)


def test_a_busy_cgroup_names_a_few_of_its_processes() -> None:
    error = cgroups.CgroupBusy(Path("/sys/fs/cgroup/x"), list(range(1, 9)))
    assert error.message == "cgroup /sys/fs/cgroup/x: still holds processes 1 2 3 4 5 …"
