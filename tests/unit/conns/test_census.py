"""Counting what is recorded and what is there."""

from __future__ import annotations

import socket
from collections.abc import Callable

from nodenet.conns.census import Recorded, count_listeners, pods_with_more, sockets_in_use
from nodenet.conns.names import Names


def test_recorded(record: Callable[..., bytes]) -> None:
    raw = record(cookie=1, netns=41) + record(cookie=2, netns=42) + record(cookie=3, netns=41)
    recorded = Recorded(memoryview(raw))
    assert recorded.cookies == {1, 2, 3}
    assert recorded.per_netns == {41: 2, 42: 1} and recorded.per_netns[9] == 0


def test_pods_whose_namespace_has_gone_have_no_more(names: Names) -> None:
    assert pods_with_more(names.records, Recorded(memoryview(b""))) == []
    assert pods_with_more((), Recorded(memoryview(b""))) == []


def test_listeners_and_sockets_of_this_namespace_are_counted() -> None:
    """Others come and go meanwhile, but these three stay."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()), listener.accept()[0]:
            assert count_listeners() >= 1
            assert sockets_in_use() >= 3
            assert sockets_in_use() - count_listeners() >= 2
