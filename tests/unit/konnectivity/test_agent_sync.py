"""When and where an agent connects."""

from __future__ import annotations

from random import Random

import pytest

from nodenet.konnectivity.agent_sync import MAX_ATTEMPTS, Sync

VIP = "10.0.0.1:8091"
THREE = ["10.0.0.1:8091", "10.0.0.2:8091", "10.0.0.3:8091"]


class Steady(Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


def sync(*addresses: str, forever: bool = False) -> Sync:
    made = Sync(interval=1.0, cap=10.0, forever=forever, rng=Steady())
    made.set_addresses(addresses or (VIP,))
    return made


def test_one_server_is_enough_until_more_are_said_to_be() -> None:
    s = sync()
    assert s.next_address(0.0) == VIP
    assert s.connected(VIP, "a", 1, 0.0)
    assert s.next_address(100.0) is None


def test_behind_one_address_every_server_is_found() -> None:
    s = sync()
    s.next_address(0.0)
    s.connected(VIP, "a", 3, 0.0)
    assert s.next_address(0.0) == VIP, "a new server: at once"
    assert not s.connected(VIP, "a", 3, 0.1)
    assert s.next_address(1.0) is None and s.next_address(1.1) == VIP, "a duplicate: an interval"
    assert s.connected(VIP, "b", 3, 1.2)
    s.next_address(1.2)
    assert s.connected(VIP, "c", 3, 1.3)
    assert s.next_address(99.0) is None and s.servers == {"a", "b", "c"}


def test_failures_wait_longer_up_to_the_cap() -> None:
    s, now, waits = sync(), 0.0, []
    for _ in range(9):
        assert s.next_address(now) == VIP
        s.failed(VIP, now)
        waits.append(s.wait(now))
        now += waits[-1]
    assert waits[:6] == pytest.approx([1, 1.5, 2.25, 3.375, 5.0625, 7.59375])
    assert waits[6:] == [10, 10, 10]
    s.next_address(now)
    s.connected(VIP, "a", 2, now)
    s.next_address(now)
    s.failed(VIP, now)
    assert s.wait(now) == 1, "a success forgets the failures"


def test_waits_are_spread() -> None:
    s = Sync(interval=1.0, cap=10.0, rng=Random(1))
    s.set_addresses([VIP])
    waits = set()
    for turn in range(20):
        s.next_address(turn * 100.0)
        s.failed(VIP, turn * 100.0)
        s.lost("nobody", turn * 100.0 + 99)
        waits.add(s.wait(turn * 100.0 + 99))
    assert len(waits) > 10


def test_every_address_of_a_name_is_connected() -> None:
    s = sync(*THREE)
    found = set()
    for number in range(3):
        address = s.next_address(0.0)
        assert address is not None
        found.add(address)
        assert s.connected(address, f"server-{number}", 1, 0.0)
    assert found == set(THREE) and s.next_address(50.0) is None


def test_an_address_that_is_down_does_not_hold_the_others() -> None:
    s = sync(*THREE)
    assert s.next_address(0.0) == THREE[0]
    s.failed(THREE[0], 0.0)
    assert s.next_address(0.0) == THREE[1]
    s.connected(THREE[1], "b", 3, 0.0)
    assert s.next_address(0.0) == THREE[2]


def test_two_addresses_of_one_server_are_one_server() -> None:
    s = sync(*THREE[:2])
    s.next_address(0.0)
    s.connected(THREE[0], "a", 1, 0.0)
    assert s.next_address(0.0) == THREE[1]
    assert not s.connected(THREE[1], "a", 1, 0.0)
    assert s.next_address(50.0) is None


def test_a_lost_server_is_sought_again_soon() -> None:
    s = sync(*THREE[:2])
    for address, server in zip(THREE[:2], "ab", strict=True):
        s.next_address(0.0)
        s.connected(address, server, 2, 0.0)
    s.lost("b", 10.0)
    assert s.next_address(10.0) == THREE[1]


def test_a_replaced_server_is_found_behind_one_address() -> None:
    s = sync()
    for server in "ab":
        s.next_address(0.0)
        s.connected(VIP, server, 2, 0.0)
    s.lost("a", 5.0)
    assert s.next_address(5.0) == VIP
    assert s.connected(VIP, "c", 2, 5.1) and s.servers == {"b", "c"}


def test_a_silent_server_does_not_stop_the_search() -> None:
    s = sync()
    begun = [at for at in range(30) if s.next_address(float(at)) is not None]
    assert begun == [0, 2, 4, 6] and len(begun) == MAX_ATTEMPTS
    s.failed(VIP, 30.0)
    assert s.next_address(31.0) == VIP


def test_forever_goes_on_but_less_and_less() -> None:
    s, now, tries = sync(forever=True), 0.0, []
    s.next_address(now)
    s.connected(VIP, "a", 1, now)
    while now < 60:
        if s.next_address(now):
            tries.append(now)
            s.connected(VIP, "a", 1, now)
        now += s.wait(now)
    assert 8 <= len(tries) <= 12 and tries[-1] - tries[-2] == 10


def test_counts_and_their_sources() -> None:
    s = sync()
    assert (s.count, s.count_from) == (1, "server")
    s.next_address(0.0)
    s.connected(VIP, "a", 4, 0.0)
    assert s.count == 4
    s.lease_count = 2
    assert (s.count, s.count_from) == (2, "lease")
    s.source = "max"
    assert (s.count, s.count_from) == (4, "max")
    s.lease_count = 0
    s.source = "default"
    assert s.count == 1


def test_a_shrinking_count_keeps_what_is_connected() -> None:
    s = sync()
    for server in "abc":
        s.next_address(0.0)
        s.connected(VIP, server, 3, 0.0)
    s.lease_count = 1
    assert s.next_address(9.0) is None and len(s.servers) == 3
    s.lease_count = 4
    assert s.next_address(9.0) == VIP


def test_the_count_of_a_duplicate_is_not_believed() -> None:
    s = sync()
    s.next_address(0.0)
    s.connected(VIP, "a", 2, 0.0)
    s.next_address(0.0)
    s.connected(VIP, "a", 9, 0.0)
    assert s.count == 2


def test_draining_connects_nowhere() -> None:
    s = sync()
    s.draining = True
    assert s.next_address(0.0) is None


def test_a_name_that_stops_resolving_keeps_its_addresses() -> None:
    s = sync(*THREE)
    s.set_addresses([])
    assert s.next_address(0.0) == THREE[0]
    s.set_addresses(["10.9.9.9:1"])
    assert s.next_address(0.0) == "10.9.9.9:1"
