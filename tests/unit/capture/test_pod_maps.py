"""What a pod looks like in the maps: flags, addresses, keys."""

from __future__ import annotations

import ipaddress

import pytest

from nodenet import abi
from nodenet.abi import PodFlag
from nodenet.capture.options import pod_id
from nodenet.capture.pod_maps import PodAddresses, flags_of, pod_value
from nodenet.capture.records import ExcludedPort, PodRecord

_DEFAULT = PodFlag.LIVE | PodFlag.OUT | PodFlag.IN | PodFlag.CLOSED_OUT | PodFlag.CLOSED_IN


def _record(**changes: object) -> PodRecord:
    values: dict[str, object] = {
        "name": "a",
        "netns": "/run/netns/x",
        "netns_inode": 1,
        "netns_cookie": 2,
        "pod_id": 2,
        "ips": (),
        "backend": "ebpf",
        "enrolled_at": "",
    }
    return PodRecord(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, _DEFAULT),
        ({"direction": "out"}, _DEFAULT & ~PodFlag.IN),
        ({"direction": "in"}, _DEFAULT & ~PodFlag.OUT),
        ({"dns": True}, _DEFAULT | PodFlag.DNS),
        ({"on_proxy_down": "open"}, PodFlag.LIVE | PodFlag.OUT | PodFlag.IN),
        ({"mode": "ingress"}, (_DEFAULT & ~PodFlag.IN) | PodFlag.INGRESS),
        ({"backend": "iptables"}, _DEFAULT | PodFlag.IPTABLES),
        ({"exclude_ports": (ExcludedPort("out", 1),)}, _DEFAULT | PodFlag.PORTS),
        ({"exclude_cidrs": ("10.0.0.0/8",)}, _DEFAULT | PodFlag.CIDRS),
    ],
)
def test_flags_follow_the_options(changes: dict[str, object], flags: PodFlag) -> None:
    assert flags_of(_record(**changes)) == flags


def test_the_first_global_address_of_each_family_is_the_target() -> None:
    found = PodAddresses.choose(
        ipaddress.ip_address(text)
        for text in ("127.0.0.1", "::1", "fe80::1", "10.0.0.1", "10.0.0.2", "fd00::1")
    )
    assert found.ip4 == ipaddress.IPv4Address("10.0.0.1")
    assert found.ip6 == ipaddress.IPv6Address("fd00::1")
    assert [str(a) for a in found.owned] == ["fe80::1", "10.0.0.1", "10.0.0.2", "fd00::1"]


def test_a_family_without_an_address_is_zero_in_the_map() -> None:
    found = PodAddresses.choose([ipaddress.ip_address("10.0.0.1")])
    fields = abi.POD.unpack(pod_value(found, 2, PodFlag.LIVE, 7))
    assert fields["ip6"] == bytes(16)
    assert fields["ip4"] == abi.pack_ip(ipaddress.IPv4Address("10.0.0.1"))
    assert (fields["outbound_port"], fields["hbone_port"]) == (15001, 15008)


def test_the_pod_id_fits_32_bits() -> None:
    assert pod_id((5 << 32) | 9) == 9
