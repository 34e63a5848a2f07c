"""``nodenet version``."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from nodenet import __version__, abi, paths
from nodenet.cli import version
from nodenet.cli.style import Style
from nodenet.cli.version import Daemon, Version, bcc_version
from nodenet.errors import NotPermitted
from nodenet.kernel.maps import Map


def test_one_line(cli: Any) -> None:
    outcome = cli("version", "--id", "nn-none")
    assert outcome.status == 0
    assert outcome.out.startswith(
        f"nodenet {__version__}, abi schema {abi.SCHEMA}, python {platform.python_version()}, bcc "
    )
    assert outcome.out.endswith(f", kernel {os.uname().release}\n")


def test_json(cli: Any) -> None:
    found = cli("version", "-j", "--id", "nn-none").json
    assert list(found) == [
        "ok", "nodenet", "abi_schema", "abi_schema_loaded", "python", "bcc", "kernel", "daemons",
    ]  # fmt: skip
    assert found["ok"] is True and found["abi_schema_loaded"] is None


def test_another_schema_in_the_kernel_is_1(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "loaded_schema", lambda instance: abi.SCHEMA + 1)
    outcome = cli("version", "-j", "--id", "nn-none")
    assert outcome.status == 1
    assert outcome.json["ok"] is False and outcome.json["abi_schema_loaded"] == abi.SCHEMA + 1
    assert outcome.err.startswith(
        f"nodenet: maps in the kernel are schema {abi.SCHEMA + 1}, this nodenet expects "
        f"{abi.SCHEMA}: /sys/fs/bpf/nodenet-nn-none/maps; "
    )
    assert outcome.err.count("\n") == 1


def test_bcc_version_is_read_from_names_only(tmp_path: Path) -> None:
    assert bcc_version([str(tmp_path), "/nowhere"]) is None
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bccx-1.0.dist-info").mkdir()
    assert bcc_version([str(tmp_path)]) is None
    (tmp_path / "bcc-0.26.0.egg-info").mkdir()
    assert bcc_version(["/nowhere", str(tmp_path)]) == "0.26.0"
    other = tmp_path / "other"
    (other / "bcc-0.31.0.dist-info").mkdir(parents=True)
    assert bcc_version([str(other)]) == "0.31.0"


def test_without_rights_the_loaded_schema_is_unknown(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path) -> None:
        raise NotPermitted("open cfg: permission denied")

    monkeypatch.setattr(paths, "BPFFS", tmp_path)
    instance = paths.Instance("nn-none")
    instance.maps.mkdir(parents=True)
    (instance.maps / "cfg").touch()
    monkeypatch.setattr(Map, "open", refused)
    assert version.loaded_schema(instance) is None


def test_daemons_have_a_line_each() -> None:
    proxies = (
        Daemon(name="ztunnel", node="n1", version=__version__, pid=11),
        Daemon(name="ztunnel", node=None, version="0.0.9", pid=12),
    )
    found = Version(
        ok=True, nodenet=__version__, abi_schema=1, abi_schema_loaded=1, python="3.11.2",
        bcc=None, kernel="6.1", daemons=proxies,
    )  # fmt: skip
    assert version.render(found, Style()).splitlines()[1:] == [
        f"ztunnel {__version__}, pid 11, node n1",
        "ztunnel 0.0.9, pid 12: another version than this command",
    ]
