"""The benchmark runs to its end and prints what it promises; no figure is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.root
@pytest.mark.timeout(1200)  # the first one may build the Go peers
def test_konnectivity() -> None:
    few = ("-j", "--quick", "--rounds", "1", "--ms", "50")
    only = [word for name in ("trips", "dials", "stalled") for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.konnectivity", *few, *only],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is True and document["bench"] == "konnectivity"
    scenes = {row["scene"] for row in document["rows"]}
    assert scenes == {"64 bytes there and back", "dials", "dials beside a stalled tunnel"}
    assert any(row["variant"] == "ours" and row["median"] > 0 for row in document["rows"])
