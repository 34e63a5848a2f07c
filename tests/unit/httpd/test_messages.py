"""Who asks, as it is shown."""

from __future__ import annotations

import os
import socket

import pytest

from nodenet.httpd.messages import Peer
from nodenet.httpd.sockets import peer_of


@pytest.mark.parametrize(
    ("peer", "shown"),
    [
        (Peer(host="10.0.0.1", port=4000), "10.0.0.1:4000"),
        (Peer(host="fd00::1", port=4000), "[fd00::1]:4000"),
        (Peer(pid=7, uid=0, gid=0), "pid 7 (uid 0)"),
        (Peer(), "unknown"),
    ],
)
def test_who_asks_is_shown(peer: Peer, shown: str) -> None:
    assert str(peer) == shown


def test_who_has_gone_already_is_unknown() -> None:
    with socket.socket() as sock:
        assert str(peer_of(sock)) == "unknown"


def test_a_process_of_this_host() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert str(peer_of(near)) == f"pid {os.getpid()} (uid {os.getuid()})"
