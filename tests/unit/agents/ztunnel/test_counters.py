"""What is counted."""

from __future__ import annotations

from nodenet.abi import Direction
from nodenet.agents.ztunnel.counters import PodCounters


def test_directions_and_bytes_are_added_up() -> None:
    counters = PodCounters()
    counters.accepted(Direction.OUT)
    counters.accepted(Direction.IN)
    counters.accepted(Direction.IN)
    counters.carried(10, 3)
    counters.carried(1, 0)
    assert (counters.accepted_out, counters.accepted_in) == (1, 2)
    assert (counters.bytes_sent, counters.bytes_received) == (11, 3)
