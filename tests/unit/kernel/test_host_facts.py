"""Lockdown and rooms, from files made up here."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodenet.kernel import host_facts
from nodenet.kernel.host_facts import UNKNOWN, lockdown, rooms


def mounted(tmp_path: Path, content: str | None) -> Path:
    """A mounts file whose securityfs holds that lockdown file."""
    directory = tmp_path / "security"
    directory.mkdir()
    if content is not None:
        (directory / "lockdown").write_text(content)
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"proc /proc proc rw 0 0\nsecurityfs {directory} securityfs rw,relatime 0 0\n"
    )
    return mounts


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ("[none] integrity confidentiality\n", "none"),
        ("none [integrity] confidentiality\n", "integrity"),
        ("none integrity [confidentiality]\n", "confidentiality"),
        ("what is this\n", UNKNOWN),
        (None, "none"),
    ],
)
def test_lockdown_of_a_mounted_securityfs(tmp_path: Path, content: str | None, mode: str) -> None:
    assert lockdown(mounted(tmp_path, content)) == mode


def test_lockdown_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(filesystem: str, name: str) -> str:
        raise PermissionError(1, "no")

    monkeypatch.setattr(host_facts, "_read_detached", refuse)
    mounts = tmp_path / "mounts"
    mounts.write_text("proc /proc proc rw 0 0\n")
    assert lockdown(mounts) == UNKNOWN


def test_lockdown_here_is_a_known_word() -> None:
    assert lockdown() in ("none", "integrity", "confidentiality", UNKNOWN)


def test_rooms(tmp_path: Path) -> None:
    assert rooms(tmp_path) == {"kubernetes": False, "containerd": False, "systemd": False}
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "run/k3s/containerd").mkdir(parents=True)
    (tmp_path / "run/k3s/containerd/containerd.sock").touch()
    assert rooms(tmp_path) == {"kubernetes": False, "containerd": True, "systemd": True}
