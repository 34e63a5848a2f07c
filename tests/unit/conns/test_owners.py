"""Which process holds a socket."""

from __future__ import annotations

import os
import socket

from nodenet.conns.owners import comm_of, socket_owners


def _inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


def test_a_socket_of_this_process_is_found() -> None:
    here = os.stat("/proc/self/ns/net").st_ino
    with socket.socket() as one, socket.socket() as two:
        inodes = {_inode(one), _inode(two)}
        found = socket_owners([*inodes, 1], here)
    assert set(found) == inodes
    assert {p.pid for p in found.values()} == {os.getpid()}


def test_holders_outside_the_namespace_are_found_too() -> None:
    with socket.socket() as sock:
        found = socket_owners([_inode(sock)], netns_inode=1)
        assert found[_inode(sock)].pid == os.getpid()
        assert found[_inode(sock)].comm == comm_of(os.getpid())


def test_nobody_asked_for_nobody_looked_at() -> None:
    assert socket_owners([], 1) == {}


def test_a_process_that_has_gone() -> None:
    assert comm_of(2**22 + 1) is None
