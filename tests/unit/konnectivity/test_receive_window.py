"""When bytes are given back, and when more of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodenet.konnectivity.extensions import DEFAULT_WINDOW_BYTES
from nodenet.konnectivity.receive_window import (
    FAST_SECONDS,
    FEW_TUNNELS,
    MOST_WINDOW_BYTES,
    grant,
)


@dataclass
class Tunnel:
    window: int = 1000
    room: int = 1000
    taken: int = 0
    granted_at: float = 10.0

    def take(self, size: int) -> None:
        """The peer sends so much, and it is taken from us."""
        assert size <= self.room
        self.room -= size
        self.taken += size


def test_what_was_taken_is_given_back() -> None:
    tunnel = Tunnel()
    tunnel.take(500)
    assert grant(tunnel, 1, 20.0) == 500
    assert (tunnel.taken, tunnel.room, tunnel.granted_at) == (0, 1000, 20.0)


@pytest.mark.parametrize(
    ("seconds", "tunnels", "window"),
    [
        (0.0, 1, 2000),
        (FAST_SECONDS * 0.99, FEW_TUNNELS, 2000),
        (FAST_SECONDS * 1.01, 1, 1000),
        (0.0, FEW_TUNNELS + 1, 1000),
    ],
)
def test_who_takes_fast_where_few_are_gets_twice_as_much(
    seconds: float, tunnels: int, window: int
) -> None:
    tunnel = Tunnel()
    tunnel.take(500)
    assert grant(tunnel, tunnels, 10.0 + seconds) == window - 500
    assert (tunnel.room, tunnel.window) == (window, window)


def test_there_is_a_widest_window() -> None:
    tunnel = Tunnel(window=DEFAULT_WINDOW_BYTES, room=DEFAULT_WINDOW_BYTES)
    for _ in range(10):
        tunnel.take(tunnel.room)
        grant(tunnel, 1, 10.0)
    assert tunnel.room == tunnel.window == MOST_WINDOW_BYTES


@given(st.lists(st.tuples(st.integers(0, 3000), st.floats(0, 0.1), st.integers(1, 50))))
def test_the_peer_never_has_more_than_a_window(steps: list[tuple[int, float, int]]) -> None:
    tunnel, now = Tunnel(), 10.0
    for size, seconds, tunnels in steps:
        now += seconds
        tunnel.take(min(size, tunnel.room))
        if tunnel.taken >= tunnel.window // 2:
            grant(tunnel, tunnels, now)
        assert tunnel.room + tunnel.taken == tunnel.window <= MOST_WINDOW_BYTES
