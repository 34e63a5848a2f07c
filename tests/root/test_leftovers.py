"""The check at the end of a privileged session finds what it looks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodenet.kernel.cgroups import Cgroup
from nodenet.lab.topology import Topology
from tests.root.leftovers import SESSION, Watch
from tests.root.world import loaded_capture, random_instance

#: Starts a process that waits for the end of its input, says its pid and ends.
PARENT = """
import subprocess, sys
child = [sys.executable, "-S", "-c", "input()"]
none = subprocess.DEVNULL
print(subprocess.Popen(child, stdin=0, stdout=none, stderr=none).pid)
"""

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch with a lock of its own: alone, whoever else runs. The session's token comes back."""
    monkeypatch.setenv(SESSION, os.environ[SESSION])
    return Watch(tmp_path / "lock")


def test_nothing_left(watch: Watch) -> None:
    made = random_instance()
    with loaded_capture(made), Topology() as topology:
        topology.pair()
    found = watch.left_behind(0)
    assert not [line for line in found if made.name in line or topology.prefix in line]


def test_a_namespace(watch: Watch) -> None:
    with Topology() as topology:
        topology.namespace("forgotten")
        assert f"/run/netns/{topology.prefix}forgotten" in watch.left_behind(0)


def test_an_instance(watch: Watch) -> None:
    made = random_instance()
    with loaded_capture(made):
        found = watch.left_behind(0)
        assert str(made.pins) in found
        assert str(made.run) in found


def test_a_cgroup(watch: Watch) -> None:
    made = Cgroup.create(Path(random_instance().name))
    try:
        assert str(made.path) in watch.left_behind(0)
    finally:
        made.remove()


def test_a_process(watch: Watch) -> None:
    # of a parent that has ended: nobody's child any more
    read, write = os.pipe()
    try:
        with os.fdopen(read, "rb") as stdin:
            parent = subprocess.run(
                [sys.executable, "-S", "-c", PARENT], stdin=stdin, capture_output=True, check=True
            )
        pid = int(parent.stdout)
        assert any(line.startswith(f"process {pid}: ") for line in watch.left_behind(0))
    finally:
        os.close(write)  # the end of its input
