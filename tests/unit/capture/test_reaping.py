"""What removing an instance leaves to those who live."""

from __future__ import annotations

import socket
from pathlib import Path

from nodenet.capture.reaping import remove_dead_sockets


def test_only_sockets_that_nobody_answers_at_go(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "ztunnel-n1.sock"))
    (tmp_path / "odd.sock").write_text("a file")
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(tmp_path / "ztunnel-n2.sock"))
        living.listen()
        remove_dead_sockets(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.sock", "ztunnel-n2.sock"]
