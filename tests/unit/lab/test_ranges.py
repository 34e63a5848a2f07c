"""Which networks of the host are in the way of a lab."""

from __future__ import annotations

import ipaddress

import pytest

from nodenet.lab.ranges import RangeUse, find_clash

LAB4 = ipaddress.ip_network("10.77.0.0/16")
LAB6 = ipaddress.ip_network("fd77::/16")


def _use(network: str, *, attached: bool) -> RangeUse:
    return RangeUse(network=ipaddress.ip_network(network), dev="br-9f", attached=attached)


@pytest.mark.parametrize(
    "network, attached, clash",
    [
        ("10.77.3.0/24", True, True),
        ("10.77.0.0/16", False, True),
        ("10.77.3.4/32", False, True),
        ("10.0.0.0/8", True, True),  # neighbours with those addresses
        ("10.0.0.0/8", False, False),  # a VPN's route: the lab is a hole in it, nothing more
        ("0.0.0.0/0", False, False),
        ("192.0.2.0/24", True, False),
        ("fd77:1::/64", True, True),
        ("fd00::/8", False, False),
        ("fd78::/64", True, False),
    ],
)
def test_what_is_in_the_way(network: str, attached: bool, clash: bool) -> None:
    use = _use(network, attached=attached)
    assert (find_clash([LAB4, LAB6], [use]) is not None) is clash


def test_the_clash_names_range_and_device() -> None:
    uses = [_use("192.0.2.0/24", attached=True), _use("fd77:2::/32", attached=False)]
    found = find_clash([LAB4, LAB6], uses)
    assert found == (LAB6, uses[1])
