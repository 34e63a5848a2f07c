"""One proxy an instance and node, told about by lock and to the service manager."""

from __future__ import annotations

import os
import resource
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet import paths
from nodenet.agents.ztunnel import process
from nodenet.agents.ztunnel.config import ZtunnelConfig
from nodenet.paths import Instance


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """An instance whose run directory is the test's."""
    monkeypatch.setattr(paths, "RUN", tmp_path)
    yield Instance("x")


def test_a_second_proxy_is_told_who_has_the_lock(instance: Instance) -> None:
    with process.only_one(instance, "one"):
        with pytest.raises(process.AlreadyRunning) as raised:
            with process.only_one(instance, "one"):
                raise AssertionError("entered")
        path = process.lock_path(instance, "one")
        line = f"already running: pid {os.getpid()} holds {path}; "
        assert raised.value.line().startswith(line)
        with process.only_one(instance, "two"), process.only_one(instance, None):
            pass
    with process.only_one(instance, "one"):
        pass
    assert not list(instance.run.glob("*.lock"))


def test_a_killed_proxy_leaves_no_lock_but_perhaps_the_file(instance: Instance) -> None:
    code = (
        "import sys, pathlib; from nodenet import paths;"
        "from nodenet.agents.ztunnel import process;"
        "paths.RUN = pathlib.Path(sys.argv[1]); c = process.only_one(paths.Instance('x'), None);"
        "c.__enter__(); print('held', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, str(instance.run.parent)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(process.AlreadyRunning, match=f"pid {holder.pid} holds"):
            with process.only_one(instance, None):
                raise AssertionError("entered")
        holder.kill()
        holder.wait()
    assert process.lock_path(instance, None).exists()
    with process.only_one(instance, None):
        assert process.lock_path(instance, None).read_text() == f"{os.getpid()}\n"


def test_a_nodes_name_cannot_leave_the_directory(instance: Instance) -> None:
    assert process.lock_path(instance, "../x").parent == instance.run


def test_the_file_limit_only_rises() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; from nodenet.agents.ztunnel import process;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(7)[1]));"
        "got = process.raise_file_limit();"
        "assert got == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 64; print(got)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert int(output) >= before[1]


def test_the_missing_cgroup_says_who_makes_it() -> None:
    name = f"nn-{secrets.token_hex(8)}"
    config = ZtunnelConfig(instance=Instance(name))
    with pytest.raises(process.AgentCgroupMissing) as raised:
        process.join_cgroup(config)
    assert f"nodenet-{name}/ztunnel: not there; enroll a pod first" in raised.value.line()
    assert raised.value.exit_code == 4


def test_the_service_manager_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        process.notify_service_manager({"NOTIFY_SOCKET": str(path)}, "READY=1")
        assert manager.recv(100) == b"READY=1"
    process.notify_service_manager({}, "READY=1")
    assert not caplog.records
    path.unlink()
    process.notify_service_manager({"NOTIFY_SOCKET": str(path)}, "READY=1")
    assert "cannot tell the service manager READY=1" in caplog.text
