"""Namespaces and links that are always removed."""

from __future__ import annotations

import os
import socket

import pytest

from nodenet.kernel import netns
from nodenet.lab.topology import Namespace, Topology, TopologyError, remove_namespace

pytestmark = [pytest.mark.root]


def _left(prefix: str) -> list[str]:
    return [name for name in netns.names() if name.startswith(prefix)]


def _reach(source: Namespace, target: Namespace, address: str) -> str:
    """The peer address that a server in ``target`` sees of a client in ``source``."""
    with target.entered():
        server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with server:
        with source.entered():
            client = socket.create_connection((address, server.getsockname()[1]), timeout=20)
        with client:
            accepted, peer = server.accept()
            accepted.close()
            return str(peer[0]).removeprefix("::ffff:")


def test_a_pair_reaches_each_other_in_both_families_at_once() -> None:
    with Topology() as net:
        left, right = net.pair()
        assert _reach(left, right, "10.99.0.2") == "10.99.0.1"
        assert _reach(right, left, "10.99.0.1") == "10.99.0.2"
        assert _reach(left, right, "fd99::2") == "fd99::1"
        assert (str(left.ip4), str(left.ip6)) == ("10.99.0.1", "fd99::1")
    assert _left(net.prefix) == []


def test_everything_goes_when_the_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), Topology() as net:
        net.pair()
        _ = 1 // 0
    assert _left(net.prefix) == []


def test_links_go_although_somebody_holds_the_namespace() -> None:
    with Topology() as net:
        left, right = net.pair()
        held = os.open(left.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            remove_namespace(left.name)
            assert "eth0" not in right.run("ip", "-br", "link").stdout
        finally:
            os.close(held)


def test_the_host_never_sees_a_link() -> None:
    before = set(os.listdir("/sys/class/net"))
    with Topology() as net:
        net.pair()
        assert set(os.listdir("/sys/class/net")) == before


def test_a_name_is_taken_only_once() -> None:
    with Topology() as net:
        net.namespace("x")
        with Topology(net.prefix) as other, pytest.raises(netns.NetNsExists):
            other.namespace("x")
        # the second one did not make it, so it must not have removed it either
        assert _left(net.prefix) == [f"{net.prefix}x"]


def test_what_the_kernel_refuses_is_named() -> None:
    with Topology() as net:
        made = net.namespace("x")
        with made.netlink() as link:
            with pytest.raises(TopologyError, match=f"no link eth0: namespace {made.name}"):
                link.up("eth0")
            with pytest.raises(TopologyError, match="cannot make route 10.1.0.0/16 dev lo"):
                link.route("10.1.0.0/16", dev="lo", via="10.2.0.1")


def test_a_half_made_name_is_removed() -> None:
    with Topology() as net:
        path = netns.named_path(f"{net.prefix}half")
        net.namespace("x")
        path.touch()
        remove_namespace(path.name)
        assert not path.exists()


def test_sysctls_are_those_of_the_namespace() -> None:
    with Topology() as net:
        one, two = net.namespace("1"), net.namespace("2")
        one.sysctl({"net.ipv4.ip_forward": 1, "net.ipv4.no_such_thing": 1})
        values = [n.run("cat", "/proc/sys/net/ipv4/ip_forward").stdout.strip() for n in (one, two)]
        assert values == ["1", "0"]
