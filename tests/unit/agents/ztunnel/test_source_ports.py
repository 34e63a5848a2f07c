"""Every port seldom, reserved ones never."""

from __future__ import annotations

import random

from nodenet.agents.ztunnel.source_ports import (
    SOURCE_PORTS,
    TRIES,
    SourcePorts,
    parse_ports,
    reserved_ports,
)


def test_the_first_choice_walks_through_the_whole_range_before_it_repeats() -> None:
    ports = SourcePorts(random.Random(1))
    seen = [next(ports.propose()) for _ in range(len(SOURCE_PORTS))]
    assert sorted(seen) == list(SOURCE_PORTS)


def test_after_the_range_come_all_unprivileged_ports_and_then_the_end() -> None:
    found = list(SourcePorts(random.Random(1)).propose())
    assert len(found) == 2 * TRIES
    assert all(port in SOURCE_PORTS for port in found[:TRIES])
    assert all(1024 <= port < 65536 for port in found)
    assert not all(port in SOURCE_PORTS for port in found)


def test_reserved_ports_are_never_proposed() -> None:
    reserved = frozenset(SOURCE_PORTS)
    found = list(SourcePorts(random.Random(1), reserved).propose())
    assert found and not reserved.intersection(found)


def test_lists_of_ports() -> None:
    assert parse_ports("\n") == frozenset()
    assert parse_ports("8080,9148-9150\n") == {8080, 9148, 9149, 9150}
    assert isinstance(reserved_ports(), frozenset)
