"""Plain numbers."""

from __future__ import annotations

from nodenet.konnectivity.server_counts import UNKNOWN, Histogram, Packets, ServerCounts


def test_a_value_is_counted_in_its_bucket() -> None:
    seen = Histogram((1.0, 5.0))
    for value in (0.5, 1.0, 1.1, 5.0, 99.0):
        seen.observe(value)
    assert seen.counts == [2, 2, 1] and seen.sum == 106.6


def test_types_that_are_not_known_share_a_place() -> None:
    packets = Packets()
    for kind in (4, 4, 100, 7, -1, 5000):
        packets.count(kind)
    assert packets.by_type[4] == 2 and packets.by_type[UNKNOWN] == 3


def test_stream_errors_are_counted_by_what_they_were() -> None:
    counts = ServerCounts()
    counts.stream_error("from_agent", "Unavailable", "Unknown")
    counts.stream_error("from_agent", "Unavailable", "Unknown")
    assert counts.stream_errors == {("from_agent", "Unavailable", "Unknown"): 2}
