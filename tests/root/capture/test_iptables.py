"""The iptables backend for real: where connections end up, what is left, what damage is seen.

The test process plays the app, the outside and the proxy, whose sockets carry mark 0x539.
"""

from __future__ import annotations

import contextlib
import ipaddress
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodenet.capture import iptables, pod_routes
from nodenet.capture.records import ExcludedPort, PodRecord
from nodenet.kernel import sysctl
from nodenet.kernel.netns import NetNs, run_in
from nodenet.lab.topology import Namespace, Topology

pytestmark = [pytest.mark.root]

MARK = 0x539
PROXY_PORTS = (15001, 15006, 15008)
APP_PORT = 8080
IP_TRANSPARENT = 19
IPV6_TRANSPARENT = 75
ORIGINAL_DST = 80


def record(**options: object) -> PodRecord:
    fields = dict(
        name="test/pod",
        netns="",
        netns_inode=0,
        netns_cookie=0,
        pod_id=0,
        ips=(),
        backend="iptables",
        enrolled_at="",
    )
    return PodRecord(**(fields | options))  # type: ignore[arg-type]  # options are its fields


@dataclass(frozen=True, slots=True)
class Ends:
    """The addresses of one family."""

    pod: str
    outside: str
    loopback: str

    @property
    def v6(self) -> bool:
        return ":" in self.pod

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if self.v6 else socket.AF_INET


BOTH = [
    pytest.param(Ends("10.99.0.1", "10.99.0.2", "127.0.0.1"), id="ipv4"),
    pytest.param(Ends("fd99::1", "fd99::2", "::1"), id="ipv6"),
]


class World:
    """A pod with its proxy, and the outside with a server; every socket is closed at the end."""

    def __init__(self, pod: Namespace, outside: Namespace, stack: contextlib.ExitStack) -> None:
        self.pod = pod
        self.outside = outside
        self.ns = stack.enter_context(NetNs.open(pod.path))
        self.stack = stack
        self.listeners: dict[int, socket.socket] = {}
        for port in PROXY_PORTS:
            self.listeners[port] = self.listen(pod, port, mark=MARK)
        self.app = self.listen(pod, APP_PORT)
        self.server = self.listen(outside, APP_PORT)

    def listen(self, where: Namespace, port: int, *, mark: int = 0) -> socket.socket:
        with where.entered():
            sock = self.stack.enter_context(socket.socket(socket.AF_INET6))
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        sock.bind(("::", port))
        sock.listen(16)
        sock.settimeout(20)
        return sock

    def dial(
        self, where: Namespace, address: str, port: int, *, mark: int = 0, source: str = ""
    ) -> socket.socket:
        v6 = ":" in address
        with where.entered():
            sock = self.stack.enter_context(
                socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
            )
        sock.settimeout(20)
        if mark:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        if source:
            if v6:
                sock.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
            else:
                sock.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
            sock.bind((source, 0))
        sock.connect((address, port))
        return sock

    def accepted(self, port: int, dialled: socket.socket) -> tuple[str, str, int]:
        """Peer and original destination of what one of the proxy's listeners accepts next."""
        sock, peer = self.listeners[port].accept()
        with sock:
            check(sock, dialled)
            original = original_destination(sock, v4=peer[0].startswith("::ffff:"))
        return peer[0].removeprefix("::ffff:"), *original

    def reaches(self, listener: socket.socket, dialled: socket.socket) -> str:
        """The peer a plain listener sees."""
        sock, peer = listener.accept()
        with sock:
            check(sock, dialled)
        return str(peer[0]).removeprefix("::ffff:")


def check(accepted: socket.socket, dialled: socket.socket) -> None:
    """Both are ends of one connection: bytes go across."""
    dialled.sendall(b"ping")
    accepted.settimeout(20)
    assert accepted.recv(4, socket.MSG_WAITALL) == b"ping"
    accepted.sendall(b"pong")
    assert dialled.recv(4, socket.MSG_WAITALL) == b"pong"


def original_destination(sock: socket.socket, *, v4: bool) -> tuple[str, int]:
    if v4:
        raw = sock.getsockopt(socket.SOL_IP, ORIGINAL_DST, 16)
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), struct.unpack_from("!H", raw, 2)[0]
    raw = sock.getsockopt(socket.IPPROTO_IPV6, ORIGINAL_DST, 28)
    return socket.inet_ntop(socket.AF_INET6, raw[8:24]), struct.unpack_from("!H", raw, 2)[0]


@pytest.fixture
def world(topology: Topology) -> Iterator[World]:
    pod, outside = topology.pair()
    with contextlib.ExitStack() as stack:
        yield World(pod, outside, stack)


def saved(pod: Namespace) -> list[str]:
    """Every rule and every chain that is not built in, both families."""
    text = pod.run("iptables-save").stdout + pod.run("ip6tables-save").stdout
    own = [x for x in text.splitlines() if x.startswith(("-A", ":"))]
    return [x for x in own if not (x.startswith(":") and " ACCEPT " in x)]


def wait_until_alone(ns: NetNs) -> None:
    """Returns when no process is in the namespace: one that a killed parent left has ended."""
    end = time.monotonic() + 30
    while any(inode_of(p) == ns.inode for p in Path("/proc").iterdir() if p.name.isdecimal()):
        assert time.monotonic() < end
        time.sleep(0.005)


def inode_of(process: Path) -> int | None:
    try:
        return (process / "ns" / "net").stat().st_ino
    except OSError:
        return None


@pytest.mark.parametrize("ends", BOTH)
def test_outbound_reaches_the_proxy_with_its_destination(world: World, ends: Ends) -> None:
    iptables.apply(world.ns, record())
    dialled = world.dial(world.pod, ends.outside, APP_PORT)
    assert dialled.getpeername()[:2] == (ends.outside, APP_PORT)
    assert world.accepted(15001, dialled) == (ends.pod, ends.outside, APP_PORT)
    # a closed port is the proxy's to find out
    dialled = world.dial(world.pod, ends.outside, 81)
    assert world.accepted(15001, dialled) == (ends.pod, ends.outside, 81)


@pytest.mark.parametrize("ends", BOTH)
def test_outbound_that_is_left_alone(world: World, ends: Ends) -> None:
    iptables.apply(world.ns, record())
    marked = world.dial(world.pod, ends.outside, APP_PORT, mark=MARK)
    assert world.reaches(world.server, marked) == ends.pod
    own = world.dial(world.pod, ends.pod, APP_PORT)
    assert world.reaches(world.app, own) == ends.pod
    loopback = world.dial(world.pod, ends.loopback, APP_PORT)
    assert world.reaches(world.app, loopback) == ends.loopback


@pytest.mark.parametrize("ends", BOTH)
def test_inbound_reaches_the_proxy_whatever_the_port(world: World, ends: Ends) -> None:
    iptables.apply(world.ns, record())
    for port in (APP_PORT, 81, 15001, 15006):
        dialled = world.dial(world.outside, ends.pod, port)
        assert world.accepted(15006, dialled) == (ends.outside, ends.pod, port)
    hbone = world.dial(world.outside, ends.pod, 15008)
    sock, _peer = world.listeners[15008].accept()
    with sock:
        check(sock, hbone)


@pytest.mark.parametrize("ends", BOTH)
def test_the_proxy_dials_the_app_as_the_client(world: World, ends: Ends) -> None:
    iptables.apply(world.ns, record())
    dialled = world.dial(world.pod, ends.pod, APP_PORT, mark=MARK, source=ends.outside)
    assert world.reaches(world.app, dialled) == ends.outside
    with pytest.raises(ConnectionRefusedError):
        world.dial(world.pod, ends.pod, 81, mark=MARK, source=ends.outside)


@pytest.mark.parametrize("ends", BOTH)
def test_excluded_ports_and_destinations(world: World, ends: Ends) -> None:
    options = record(exclude_ports=(ExcludedPort("out", APP_PORT), ExcludedPort("in", APP_PORT)))
    iptables.apply(world.ns, options)
    assert world.reaches(world.server, world.dial(world.pod, ends.outside, APP_PORT)) == ends.pod
    assert world.reaches(world.app, world.dial(world.outside, ends.pod, APP_PORT)) == ends.outside
    other = world.dial(world.pod, ends.outside, 81)
    assert world.accepted(15001, other) == (ends.pod, ends.outside, 81)

    iptables.apply(world.ns, record(exclude_cidrs=(str(ipaddress.ip_network(ends.outside)),)))
    assert world.reaches(world.server, world.dial(world.pod, ends.outside, APP_PORT)) == ends.pod
    inbound = world.dial(world.outside, ends.pod, APP_PORT)
    assert world.accepted(15006, inbound) == (ends.outside, ends.pod, APP_PORT)


@pytest.mark.parametrize("ends", BOTH)
@pytest.mark.parametrize("options", [{"direction": "out"}, {"mode": "ingress"}])
def test_without_inbound_capture(world: World, ends: Ends, options: dict[str, str]) -> None:
    iptables.apply(world.ns, record(**options))
    inbound = world.dial(world.outside, ends.pod, APP_PORT)
    assert world.reaches(world.app, inbound) == ends.outside
    outbound = world.dial(world.pod, ends.outside, APP_PORT)
    assert world.accepted(15001, outbound) == (ends.pod, ends.outside, APP_PORT)
    # the outbound listener takes any address; from outside it must not be reached
    stray = world.dial(world.outside, ends.pod, 15001)
    assert world.accepted(15006, stray) == (ends.outside, ends.pod, 15001)


@pytest.mark.parametrize("ends", BOTH)
def test_without_outbound_capture(world: World, ends: Ends) -> None:
    iptables.apply(world.ns, record(direction="in"))
    outbound = world.dial(world.pod, ends.outside, APP_PORT)
    assert world.reaches(world.server, outbound) == ends.pod
    inbound = world.dial(world.outside, ends.pod, APP_PORT)
    assert world.accepted(15006, inbound) == (ends.outside, ends.pod, APP_PORT)


@pytest.mark.parametrize("ends", BOTH)
def test_dns_over_udp_goes_to_the_proxy_and_the_answer_seems_the_servers(
    world: World, ends: Ends
) -> None:
    def udp(where: Namespace, address: str, port: int, mark: int = 0) -> socket.socket:
        with where.entered():
            sock = world.stack.enter_context(socket.socket(ends.family, socket.SOCK_DGRAM))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        sock.settimeout(20)
        sock.bind((address, port))
        return sock

    proxy = udp(world.pod, ends.loopback, 15053, MARK)
    server = udp(world.outside, ends.outside, 53)
    app = udp(world.pod, "::" if ends.v6 else "0.0.0.0", 0)

    iptables.apply(world.ns, record(dns=True))
    app.sendto(b"q", (ends.outside, 53))
    question, client = proxy.recvfrom(64)
    proxy.sendto(b"a", client)
    answer, sender = app.recvfrom(64)
    assert (question, answer, sender[:2]) == (b"q", b"a", (ends.outside, 53))
    # the proxy's own question goes out
    upstream = udp(world.pod, ends.pod, 0, MARK)
    upstream.sendto(b"up", (ends.outside, 53))
    assert server.recvfrom(64)[0] == b"up"

    iptables.apply(world.ns, record(dns=True, exclude_ports=(ExcludedPort("out", 53),)))
    fresh = udp(world.pod, "::" if ends.v6 else "0.0.0.0", 0)
    fresh.sendto(b"excluded", (ends.outside, 53))
    assert server.recvfrom(64)[0] == b"excluded"


@pytest.mark.parametrize("ends", BOTH)
def test_dns_over_tcp_goes_to_the_proxy_but_not_from_loopback(world: World, ends: Ends) -> None:
    proxy = world.listen(world.pod, 15053, mark=MARK)
    local = world.listen(world.pod, 53)
    iptables.apply(world.ns, record(dns=True))
    assert world.reaches(proxy, world.dial(world.pod, ends.outside, 53)) == ends.pod
    for address in (ends.loopback, ends.pod):
        assert world.reaches(local, world.dial(world.pod, address, 53)) == address


@pytest.mark.parametrize("ends", BOTH)
def test_node_probes_translated_as_the_reference_does_pass_the_proxy(
    world: World, ends: Ends
) -> None:
    probe = "fd16:9254:7127:1337:ffff:ffff:ffff:ffff" if ends.v6 else "169.254.7.127"
    world.pod.run("ip", "route", "add", probe, "dev", "eth0")
    # the node answers for the probe's address, as its own proxy_arp or routes make it do
    with NetNs.open(world.outside.path) as node:
        world.outside.run("ip", "addr", "add", probe, "dev", "eth0", *("nodad",) * ends.v6)
        iptables.apply(world.ns, record())
        assert iptables.apply_host_probe_rules(node, [ipaddress.ip_address(ends.pod)])
        dialled = world.dial(world.outside, ends.pod, APP_PORT)
        assert world.reaches(world.app, dialled) == probe
        iptables.remove_host_probe_rules(node)
        assert saved(world.outside) == []
    dialled = world.dial(world.outside, ends.pod, APP_PORT)
    assert world.accepted(15006, dialled)[0] == ends.outside


def test_a_second_time_changes_nothing(world: World) -> None:
    options = record(dns=True, exclude_ports=(ExcludedPort("out", 9093),))
    assert iptables.apply(world.ns, options) is True
    before = saved(world.pod)
    assert iptables.apply(world.ns, options) is False
    assert saved(world.pod) == before
    state = iptables.state(world.ns, options)
    assert (state.status, state.ok, state.problems) == ("present", True, ())
    assert run_in(world.ns, lambda: sysctl.read_int("net.ipv4.tcp_fwmark_accept")) == 0


def test_other_options_replace_all_rules(world: World) -> None:
    wide = record(dns=True, exclude_cidrs=("10.0.0.0/8", "::/0"))
    narrow = record(direction="in")
    iptables.apply(world.ns, narrow)
    expected = saved(world.pod)
    iptables.apply(world.ns, wide)
    assert iptables.state(world.ns, wide).ok
    assert not iptables.state(world.ns, narrow).ok
    iptables.apply(world.ns, narrow)
    assert saved(world.pod) == expected
    assert iptables.state(world.ns, narrow).ok


def test_removal_leaves_nothing_not_even_connection_tracking(world: World) -> None:
    iptables.apply(world.ns, record(dns=True))
    iptables.remove(world.ns)
    assert saved(world.pod) == []
    assert "chain" not in world.pod.run("nft", "list", "ruleset").stdout
    assert iptables.state(world.ns, record()).status == "absent"
    assert len(pod_routes.check(world.ns, fwmark_accept=False)) == 4
    iptables.remove(world.ns)


def test_other_peoples_rules_are_not_touched(world: World) -> None:
    for rule in (
        "-t nat -A OUTPUT -p tcp --dport 99 -j ACCEPT",
        "-t nat -N EMPTY",
        "-t mangle -P FORWARD DROP",
    ):
        world.pod.run("iptables", *rule.split())
    before = world.pod.run("iptables-save").stdout.splitlines()
    iptables.apply(world.ns, record(dns=True))
    iptables.remove(world.ns)
    after = world.pod.run("iptables-save").stdout.splitlines()
    kept = [x for x in before if not x.startswith("#")]
    assert set(kept) <= set(after)
    assert not [x for x in after if "NODENET" in x]


DAMAGES = [
    ("-t nat -D OUTPUT -j NODENET_OUTPUT", "IPv4 nat OUTPUT: no jump to NODENET_OUTPUT"),
    ("-t nat -D NODENET_PRERT 2", "IPv4 nat NODENET_PRERT: rule i1 is missing or changed"),
    ("-t mangle -F NODENET_PRERT", "IPv4 mangle NODENET_PRERT: rule m1 is missing or changed"),
    (
        "-t nat -I NODENET_OUTPUT -p tcp -j ACCEPT",
        "IPv4 nat NODENET_OUTPUT: rule not ours: -p tcp -j ACCEPT",
    ),
    ("-t nat -I PREROUTING -j NODENET_PRERT", "IPv4 nat PREROUTING: 2 jumps to NODENET_PRERT"),
]


@pytest.mark.parametrize(("damage", "found"), DAMAGES)
def test_damage_is_seen_and_mended(world: World, damage: str, found: str) -> None:
    iptables.apply(world.ns, record())
    before = saved(world.pod)
    world.pod.run("iptables", *damage.split())
    state = iptables.state(world.ns, record())
    assert (state.status, state.problems) == ("damaged", (found,))
    assert iptables.apply(world.ns, record()) is True
    assert sorted(saved(world.pod)) == sorted(before)
    assert iptables.state(world.ns, record()).ok


def test_lost_routes_are_damage_too(world: World) -> None:
    iptables.apply(world.ns, record())
    world.pod.run("ip", "route", "flush", "table", "100")
    state = iptables.state(world.ns, record())
    assert state.problems == ("missing: ip -4 route local default dev lo table 100",)
    iptables.apply(world.ns, record())
    assert iptables.state(world.ns, record()).ok


def test_packets_are_counted_by_rule(world: World) -> None:
    iptables.apply(world.ns, record())
    dialled = world.dial(world.pod, "10.99.0.2", APP_PORT)
    assert world.accepted(15001, dialled)[2] == APP_PORT
    counters = iptables.state(world.ns, record()).counters
    assert counters[4, "o3"][0] == 1
    assert counters[6, "o3"] == counters[4, "i1"] == (0, 0)


def test_without_ipv6_nothing_fails(world: World) -> None:
    world.pod.sysctl({"net.ipv6.conf.all.disable_ipv6": 1})
    iptables.apply(world.ns, record(dns=True))
    assert iptables.state(world.ns, record(dns=True)).ok
    dialled = world.dial(world.pod, "10.99.0.2", APP_PORT)
    assert world.accepted(15001, dialled)[1] == "10.99.0.2"
    iptables.remove(world.ns)
    assert saved(world.pod) == []


def test_a_change_of_backend_takes_the_settings_back(world: World) -> None:
    pod_routes.install(world.ns)
    iptables.apply(world.ns, record())
    assert run_in(world.ns, lambda: sysctl.read_int("net.ipv4.tcp_fwmark_accept")) == 0
    assert iptables.state(world.ns, record()).ok


def test_killed_at_any_moment_it_can_be_completed_and_removed(world: World) -> None:
    options = record(dns=True)
    loop = (
        "import sys\n"
        "from nodenet.capture import iptables\n"
        "from nodenet.capture.records import PodRecord\n"
        "from nodenet.kernel.netns import NetNs\n"
        "options = PodRecord(name='t', netns='', netns_inode=0, netns_cookie=0, pod_id=0,\n"
        "                    ips=(), backend='iptables', enrolled_at='', dns=True)\n"
        "ns = NetNs.open(sys.argv[1])\n"
        "print('x', flush=True)\n"
        "while True:\n"
        "    iptables.apply(ns, options)\n"
        "    iptables.remove(ns)\n"
    )
    for turn in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", loop, str(world.pod.path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        wait_until_alone(world.ns)
        if turn % 2:
            iptables.apply(world.ns, options)
            assert iptables.state(world.ns, options).ok
        iptables.remove(world.ns)
        assert saved(world.pod) == []


def test_a_host_without_iptables(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iptables, "_SBIN", "")
    monkeypatch.setenv("PATH", str(Path("/nonexistent")))
    with pytest.raises(iptables.IptablesMissing, match="iptables-save: not installed"):
        iptables.apply(world.ns, record())
