"""What is none of the capture's business: other protocols, forwarded traffic, other rules."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from nodenet.abi import Direction
from nodenet.capture.errors import HostNamespace
from nodenet.kernel.netns import host_path
from nodenet.lab.topology import Namespace, remove_namespace
from tests.root.dialling import TIMEOUT_SECONDS, ask, dial
from tests.root.parity.cases import Case
from tests.root.parity.rows import parity
from tests.root.world import APP_PORT, UDP_PORT, VERSIONS, World

pytestmark = [pytest.mark.root, pytest.mark.bpf]

_ICMP = {4: (socket.AF_INET, socket.IPPROTO_ICMP, 8, 0), 6: (socket.AF_INET6, 58, 128, 129)}
IPPROTO_SCTP = 132


@parity("P21", rules=("O1",))
def test_udp_out(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    seen = case.query(a.outside, UDP_PORT)
    assert seen.verdict == "bypassed O1"
    assert seen.greeting.by == "server"
    assert seen.dialled.peer == (a.outside, UDP_PORT)


@parity("P21", rules=("I1",))
def test_udp_in(any_case: Case) -> None:
    a = any_case.a
    seen = ask(any_case.world.outside, a.pod, UDP_PORT, mapped=any_case.mapped)
    assert seen.by == "app"
    foretold = any_case.foretold_inbound(a.outside, a.pod, UDP_PORT, protocol="udp")
    assert foretold == "bypassed I1"
    assert seen.greeting is not None and seen.local is not None
    assert seen.greeting.peer[0] == a.outside


@parity("P21", rules=("O1", "I1"))
@pytest.mark.parametrize("outward", [True, False], ids=["out", "in"])
def test_icmp(case: Case, outward: bool) -> None:
    world, a = case.world, case.a
    source, host = (world.pod, a.outside) if outward else (world.outside, a.pod)
    family, protocol, request, reply = _ICMP[case.family.version]
    with source.entered():
        sock = socket.socket(family, socket.SOCK_RAW, protocol)
    with sock:
        sock.settimeout(TIMEOUT_SECONDS)
        sock.connect((str(host), 0))
        number = os.getpid() & 0xFFFF
        body = struct.pack(">BBHHH", request, 0, 0, number, 1)
        if family == socket.AF_INET:
            body = struct.pack(">BBHHH", request, 0, _checksum(body), number, 1)
        sock.send(body)
        while True:
            data = sock.recv(4096)
            data = data[20:] if family == socket.AF_INET else data
            if data[0] == reply:
                break
        assert struct.unpack_from(">H", data, 4)[0] == number


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    return ~(total + (total >> 16)) & 0xFFFF


@parity("P21", rules=("O1",))
def test_sctp(case: Case) -> None:
    a = case.a
    family = socket.AF_INET if case.family.version == 4 else socket.AF_INET6
    try:
        with case.world.outside.entered():
            server = socket.socket(family, socket.SOCK_STREAM, IPPROTO_SCTP)
    except OSError as error:
        pytest.skip(f"this kernel has no SCTP: {error}")
    with server, case.world.pod.entered():
        server.bind((str(a.outside), APP_PORT))
        server.listen()
        with socket.socket(family, socket.SOCK_STREAM, IPPROTO_SCTP) as client:
            client.settimeout(TIMEOUT_SECONDS)
            client.connect((str(a.outside), APP_PORT))
            with server.accept()[0] as accepted:
                assert accepted.getpeername()[:2] == client.getsockname()[:2]


@pytest.fixture
def nested(world: World) -> Iterator[Namespace]:
    """A namespace behind the pod, as of a container or a virtual machine inside it."""
    made = world.topology.namespace("nested")
    world.pod.sysctl({"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1})
    with world.pod.netlink() as link:
        link.veth("vm0", made, "eth0")
        link.address("vm0", "10.78.0.1/24")
        link.address("vm0", "fd78::1/64")
        link.up("vm0")
    with made.netlink() as link:
        link.address("eth0", "10.78.0.2/24")
        link.address("eth0", "fd78::2/64")
        link.up("eth0")
        link.route("10.77.0.0/16", dev="eth0", via="10.78.0.1")
        link.route("fd77::/16", dev="eth0", via="fd78::1")
    for space, dev, via4, via6 in (
        (world.node, "pod", "10.77.1.2", "fd77:1::2"),
        (world.outside, "eth0", "10.77.2.1", "fd77:2::1"),
    ):
        with space.netlink() as link:
            link.route("10.78.0.0/24", dev=dev, via=via4)
            link.route("fd78::/64", dev=dev, via=via6)
    yield made
    remove_namespace(world.topology.namespaces.pop("nested").name)
    world.pod.sysctl({"net.ipv4.ip_forward": 0, "net.ipv6.conf.all.forwarding": 0})
    for space in (world.node, world.outside):
        for version in VERSIONS:
            network = "10.78.0.0/24" if version == 4 else "fd78::/64"
            space.run("ip", f"-{version}", "route", "del", network)


@parity("P23", rules=("O2",))
def test_traffic_through_a_virtual_interface(case: Case, nested: Namespace) -> None:
    seen = dial(nested, case.a.outside, APP_PORT)
    assert seen.greeting is not None
    if case.ebpf:
        # no socket of the pod, so no hook: forwarded as without capture
        assert seen.by == "server"
        assert seen.greeting.peer == seen.local
    else:
        # the reference takes it for outbound (15001) on interfaces it is told of; we know none,
        # so rule i1 takes it for inbound, and the proxy rejects the foreign destination
        assert (seen.by, seen.greeting.listener) == ("proxy", 15006)
        assert seen.greeting.original == (case.a.outside, APP_PORT)


@parity("P23", "P29", rules=("I10",))
def test_a_nested_namespace_is_not_the_pod(case: Case, nested: Namespace) -> None:
    # its connects are not the pod's; what it sends to the pod arrives from outside of it
    before = case.counted(Direction.OUT)
    seen = dial(nested, case.a.pod, APP_PORT)
    assert case.fired(Direction.OUT, before) is None
    assert (seen.by, seen.greeting and seen.greeting.listener) == ("proxy", 15006)


@parity("P30", rules=("O2",))
def test_the_hosts_namespace_is_refused(case: Case) -> None:
    with pytest.raises(HostNamespace, match="never captured"):
        case.world.capture.enroll(host_path(), name="t/host")


@parity("P30", rules=("O2",))
def test_the_nodes_own_connects_are_left_alone(case: Case) -> None:
    before = case.counted(Direction.OUT)
    seen = dial(case.world.node, case.a.outside, APP_PORT)
    assert seen.by == "server"
    assert case.fired(Direction.OUT, before) is None


@parity("P33", rules=("O8",))
def test_the_pods_own_firewall_is_not_touched(case: Case) -> None:
    world = case.world
    program = "iptables" if case.family.version == 4 else "ip6tables"
    loopback = "127.0.0.1/32" if case.family.version == 4 else "::1/128"
    own = [
        ["-t", "nat", "OUTPUT", "-d", loopback, "-p", "tcp", "--dport", "7", "-j", "ACCEPT"],
        ["-t", "filter", "INPUT", "-p", "tcp", "--dport", "7777", "-j", "DROP"],
        ["-t", "mangle", "POSTROUTING", "-p", "udp", "--dport", "9", "-j", "ACCEPT"],
    ]
    for rule in own:
        world.pod.run(program, "-w", *rule[:2], "-A", *rule[2:])
    try:
        world.unenroll()
        before = world.pod.run(f"{program}-save").stdout
        world.enroll()
        assert case.connect(case.a.outside, APP_PORT).verdict == "captured O8"
        world.unenroll()
        after = world.pod.run(f"{program}-save").stdout
        assert _rules(after) == _rules(before)
        assert len([r for r in _rules(before) if r.startswith("-A")]) == len(own)
    finally:
        for rule in own:
            world.pod.run(program, "-w", *rule[:2], "-D", *rule[2:])


def _rules(saved: str) -> list[str]:
    return [x for x in saved.splitlines() if not x.startswith(("#", ":"))]
