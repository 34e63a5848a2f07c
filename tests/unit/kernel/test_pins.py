"""Pins: where there is no bpffs, and who may not use one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodenet.errors import NotPermitted, NotSupported
from nodenet.kernel import pins
from nodenet.kernel.pins import NoBpffs


def test_a_directory_that_is_no_bpffs(tmp_path: Path) -> None:
    with pytest.raises(NoBpffs) as caught:
        pins.require_bpffs(tmp_path)
    assert caught.value.line() == f"no bpffs at {tmp_path}; mount -t bpf none {tmp_path}"
    assert caught.value.exit_code == 1


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NoBpffs):
        pins.require_bpffs(tmp_path / "gone")


@pytest.mark.parametrize(
    ("effective", "missing"),
    [
        (0, ("CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF")),
        (1 << 39 | 1 << 38, ("CAP_NET_ADMIN",)),
        (1 << 21, ()),
        (0x1FFFFFFFFFF, ()),
    ],
)
def test_missing_capabilities(effective: int, missing: tuple[str, ...], tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{effective:016x}\n")
    assert pins.missing_capabilities(status) == missing


def test_a_process_that_lacks_capabilities_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "missing_capabilities", lambda: ("CAP_NET_ADMIN", "CAP_BPF"))
    error = pins.refused("load program nn_x", "cgroup/connect4")
    assert isinstance(error, NotPermitted)
    assert re.search(r"load program nn_x: .*CAP_NET_ADMIN, CAP_BPF; run with sudo", error.line())


def test_a_process_that_lacks_none_meets_a_kernel_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pins, "missing_capabilities", lambda: ())
    monkeypatch.setattr(pins, "in_user_namespace", lambda: False)
    error = pins.refused("load program nn_x", "cgroup/connect4")
    assert isinstance(error, NotSupported)
    assert error.feature == "cgroup/connect4"
    assert error.exit_code == 3


def test_root_of_a_user_namespace_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "missing_capabilities", lambda: ())
    monkeypatch.setattr(pins, "in_user_namespace", lambda: True)
    assert "user namespace" in pins.refused("x", "y").line()


@pytest.mark.parametrize(
    ("mapping", "inside"),
    [("         0          0 4294967295\n", False), ("0 1000 1\n", True), ("0 0 1\n", True)],
)
def test_user_namespace_by_its_mapping(mapping: str, inside: bool, tmp_path: Path) -> None:
    path = tmp_path / "uid_map"
    path.write_text(mapping)
    assert pins.in_user_namespace(path) is inside


def test_unpin_of_nothing(tmp_path: Path) -> None:
    assert pins.unpin(tmp_path / "gone") is False
    (tmp_path / "file").write_text("")
    assert pins.unpin(tmp_path / "file") is True
