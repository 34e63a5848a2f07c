"""The example of docs/konnectivity.md, as it is pasted into a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def block() -> list[str]:
    """The lines behind `Try it`."""
    _, _, rest = (ROOT / "docs" / "konnectivity.md").read_text().partition("\nTry it ")
    return rest.split("```")[1].strip().splitlines()


@pytest.mark.root
def test_it_works_as_it_is_written(tmp_path: Path) -> None:
    """In a namespace of its own, where the ports are free; with the environment there is."""
    first, *lines = block()
    assert first == './dev nodenet version && PATH="$PWD/.venv/bin:$PATH"'
    name = f"nn-{uuid.uuid4().hex[:8]}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "NODENET_ID": name, "TMPDIR": str(tmp_path)}
    try:
        done = subprocess.run(
            ["unshare", "--net", "bash"],
            # the agent drains for a second when it is told to end
            input="\n".join(["ip link set lo up", *lines, "wait"]),
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "1 agents, 1 of 1 servers" in done.stdout, done.stderr
    finally:
        shutil.rmtree(f"/run/nodenet-{name}", ignore_errors=True)
