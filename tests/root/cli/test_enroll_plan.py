"""`capture enroll --dry-run` names every write and whom it would meet, and touches nothing."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nodenet.lab.topology import Topology
from nodenet.paths import Instance

pytestmark = [pytest.mark.root]

NODENET = str(Path(sys.executable).with_name("nodenet"))


def test_a_plan_touches_nothing() -> None:
    instance = Instance(f"e-{secrets.token_hex(4)}")
    with Topology() as made:
        pod, outside = made.pair()
        with outside.entered():
            server = socket.create_server(("10.99.0.2", 80))
        with pod.entered():
            client = socket.create_connection(("10.99.0.2", 80))
            itself = socket.create_server(("10.99.0.1", 81))
            inner = socket.create_connection(("10.99.0.1", 81))
        with server, client, itself, inner:
            target = f"netns:{pod.path}"
            words = ("capture", "enroll", target, "--dry-run", "--exclude-port", "out:9093")
            command = [NODENET, "--id", instance.id or "", *words]
            done = subprocess.run([*command, "-j"], capture_output=True, timeout=60, check=True)
            shown = subprocess.run(
                [*command, "--existing", "reset"], capture_output=True, text=True, timeout=60
            )
            local = f"10.99.0.1:{client.getsockname()[1]}"
            client.sendall(b"still here")
    plan = json.loads(done.stdout)
    assert [write["map"] for write in plan["writes"]][-3:] == ["ports", "pods", "pods"]
    assert "LIVE" in plan["writes"][-1]["value"]
    assert plan["existing"] == [{"pod": target, "local": local, "remote": "10.99.0.2:80"}]
    assert shown.stdout.splitlines()[-2:] == [
        "1 existing connections would be reset:",
        f"  {target}  {local} -> 10.99.0.2:80",
    ]
    assert not instance.exists() and not instance.run.exists()
