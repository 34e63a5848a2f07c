"""Ranges: all that contain an address are found, longest first, whatever the order of insertion."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from nodenet.mesh.cidrs import CidrIndex
from nodenet.mesh.model import CidrAddress

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def cidr(network: Network, of: str = "") -> CidrAddress:
    return CidrAddress(of, network.network_address.packed, network.prefixlen)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    # few distinct addresses, so that ranges contain each other
    bits = draw(st.sampled_from((32, 128)))
    number = draw(st.integers(0, 15)) << (bits - 4) | draw(st.integers(0, 3))
    length = draw(st.sampled_from((0, 1, 2, 4, bits - 1, bits)))
    return ipaddress.ip_network((number.to_bytes(bits // 8), length), strict=False)


@given(st.lists(networks(), max_size=12), st.data())
def test_as_ipaddress_says(ranges: list[Network], data: st.DataObject) -> None:
    index = CidrIndex()
    for each in ranges:
        index.add(cidr(each), str(each))
    gone = data.draw(st.lists(st.sampled_from(ranges), max_size=4)) if ranges else []
    for each in gone:
        index.discard(cidr(each), str(each))
    left = set(ranges) - set(gone)
    address = data.draw(networks()).network_address
    found = index.containing("", address.packed)
    assert {key for _, key in found} == {
        str(each) for each in left if each.version == address.version and address in each
    }
    assert [length for length, _ in found] == sorted((n for n, _ in found), reverse=True)


def test_networks_are_apart() -> None:
    index = CidrIndex()
    index.add(cidr(ipaddress.ip_network("10.0.0.0/8"), "one"), "a")
    address = ipaddress.ip_address("10.1.1.1").packed
    assert index.containing("one", address) == [(8, "a")]
    assert index.containing("", address) == []


def test_a_network_without_ranges_is_forgotten() -> None:
    index = CidrIndex()
    range_ = cidr(ipaddress.ip_network("10.0.0.0/8"))
    index.add(range_, "a")
    index.discard(range_, "a")
    index.discard(range_, "a")
    assert index.containing("", range_.address) == []
    assert index._networks == {}
