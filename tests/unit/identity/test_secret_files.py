"""Files that are replaced in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nodenet.identity.secret_files import sweep, write_whole


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_mode_is_as_told_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        write_whole(tmp_path / "key", b"secret")
        write_whole(tmp_path / "roots", b"public", 0o644)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "roots").stat().st_mode) == 0o644


def test_a_file_is_never_readable_by_others_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    real = os.fsync

    def spy(fd: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        real(fd)

    monkeypatch.setattr(os, "fsync", spy)
    old = os.umask(0)
    try:
        write_whole(tmp_path / "key", b"secret")
    finally:
        os.umask(old)
    assert modes[0] == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    write_whole(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "key", b"x")
    (tmp_path / ".key.99.tmp").write_bytes(b"half")
    (tmp_path / f".key.{os.getpid()}.tmp").write_bytes(b"half")
    (tmp_path / ".keep").write_bytes(b"x")
    write_whole(tmp_path / "key", b"y")
    sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".keep", "key"]
    assert (tmp_path / "key").read_bytes() == b"y"
