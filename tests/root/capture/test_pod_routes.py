"""Routes by mark in a pod: what they do to packets, and that they go as they came."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from nodenet.capture import pod_routes
from nodenet.capture.pod_routes import PodRoutesFailed
from nodenet.kernel import netns, sysctl
from nodenet.kernel.netns import NetNs, run_in
from nodenet.lab.topology import Namespace, Topology

pytestmark = [pytest.mark.root]

SYSCTLS = ("net.ipv4.tcp_fwmark_accept", "net.ipv4.fwmark_reflect", "net.ipv6.fwmark_reflect")
IP_TRANSPARENT = 19
IPV6_TRANSPARENT = 75


@pytest.fixture
def ns(pod: Namespace) -> Iterator[NetNs]:
    with NetNs.open(pod.path) as opened:
        yield opened


def values(ns: NetNs) -> list[int | None]:
    return run_in(ns, lambda: [sysctl.read_int(name) for name in SYSCTLS])


def routing(pod: Namespace) -> str:
    commands = (
        ("ip", "rule"),
        ("ip", "-6", "rule"),
        ("ip", "route", "show", "table", "all"),
        ("ip", "-6", "route", "show", "table", "all"),
    )
    return "".join(pod.run(*command).stdout for command in commands)


def proxied(
    pod: Namespace, client: str, app: tuple[str, int], seconds: float = 20.0
) -> socket.socket:
    """What the proxy dials the app with: the client's address, any port, the mark."""
    v6 = ":" in client
    with pod.entered():
        sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
    sock.settimeout(seconds)
    if v6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
    else:
        sock.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x111)
    try:
        sock.bind((client, 0))
        sock.connect(app)
    except OSError:
        sock.close()
        raise
    return sock


CASES = [("10.99.0.2", "10.99.0.1"), ("fd99::2", "fd99::1")]


@pytest.mark.parametrize(("client", "own"), CASES)
def test_the_app_sees_the_client_and_answers_the_proxy(
    pod: Namespace, ns: NetNs, client: str, own: str
) -> None:
    with pod.entered():
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        app = socket.create_server((own, 8080), family=family)
    with app:
        with pytest.raises(TimeoutError):
            proxied(pod, client, (own, 8080), seconds=1.0)
        pod_routes.install(ns)
        with proxied(pod, client, (own, 8080)) as sock:
            app.settimeout(20)
            accepted, peer = app.accept()
            with accepted:
                assert peer[0] == client
                accepted.sendall(b"answer")
                assert sock.recv(6, socket.MSG_WAITALL) == b"answer"
        # nobody listens there: the reset comes back too, at once
        with pytest.raises(ConnectionRefusedError):
            proxied(pod, client, (own, 8081))


def test_traffic_of_the_outside_is_as_before(pod: Namespace, ns: NetNs, topology: Topology) -> None:
    pod_routes.install(ns)
    outside = topology.namespaces["r"]
    with pod.entered():
        app = socket.create_server(("10.99.0.1", 8080))
    with app, outside.entered(), socket.create_connection(("10.99.0.1", 8080), timeout=20) as sock:
        accepted, peer = app.accept()
        with accepted:
            assert peer == sock.getsockname()
            accepted.sendall(b"x")
            assert sock.recv(1) == b"x"


def test_it_goes_as_it_came(pod: Namespace, ns: NetNs) -> None:
    before, settings = routing(pod), values(ns)
    assert len(pod_routes.check(ns)) == 7
    pod_routes.install(ns)
    assert pod_routes.check(ns) == []
    assert values(ns) == [1, 1, 1]
    installed = routing(pod)
    pod_routes.install(ns)
    assert routing(pod) == installed
    pod_routes.remove(ns)
    assert (routing(pod), values(ns)) == (before, settings) and settings == [0, 0, 0]
    pod_routes.remove(ns)
    assert routing(pod) == before


def test_settings_that_were_on_stay_on(pod: Namespace, ns: NetNs) -> None:
    pod.sysctl({"net.ipv4.fwmark_reflect": 1})
    pod_routes.install(ns)
    pod_routes.install(ns)
    pod_routes.remove(ns)
    assert values(ns) == [0, 1, 0]


def test_another_tenants_rule_and_route_stay(pod: Namespace, ns: NetNs) -> None:
    for version in ("-4", "-6"):
        pod.run("ip", version, *"rule add fwmark 0x111/0xfff pref 32764 lookup 100".split())
        pod.run("ip", version, *"route add local default dev lo table 100".split())
    before = routing(pod)
    pod_routes.install(ns)
    assert pod_routes.check(ns) == []
    pod_routes.remove(ns)
    assert (routing(pod), values(ns)) == (before, [0, 0, 0])


def test_iptables_mode_has_the_routes_and_not_the_settings(pod: Namespace, ns: NetNs) -> None:
    before = routing(pod)
    pod_routes.install(ns, fwmark_accept=False)
    assert values(ns) == [0, 0, 0]
    assert pod_routes.check(ns, fwmark_accept=False) == []
    pod_routes.install(ns)
    assert pod_routes.check(ns, fwmark_accept=False) == [
        "net.ipv4.tcp_fwmark_accept is still set from the ebpf backend"
    ]
    pod_routes.install(ns, fwmark_accept=False)
    assert values(ns) == [0, 0, 0]
    assert pod_routes.check(ns, fwmark_accept=False) == []
    assert len(pod_routes.check(ns)) == 3
    pod_routes.remove(ns)
    assert routing(pod) == before


def test_without_ipv6_only_ipv4_is_done(pod: Namespace, ns: NetNs) -> None:
    pod.sysctl({"net.ipv6.conf.all.disable_ipv6": 1})
    before = routing(pod)
    pod_routes.install(ns)
    assert pod_routes.check(ns) == []
    assert values(ns) == [1, 1, 0]
    assert "0x111" not in pod.run("ip", "-6", "rule").stdout
    pod_routes.remove(ns)
    assert routing(pod) == before


def test_ipv6_switched_off_afterwards_leaves_nothing(pod: Namespace, ns: NetNs) -> None:
    pod_routes.install(ns)
    pod.sysctl({"net.ipv6.conf.all.disable_ipv6": 1})
    pod_routes.remove(ns)
    assert values(ns) == [0, 0, 0]
    assert "0x111" not in routing(pod)


def test_a_loopback_that_is_down_is_named() -> None:
    with Topology() as topology:
        down = topology.namespace("down")
        down.run("ip", "link", "set", "lo", "down")
        with NetNs.open(down.path) as ns:
            with pytest.raises(PodRoutesFailed) as raised:
                pod_routes.install(ns)
            assert "its loopback is down: ip link set lo up" in raised.value.line()
            pod_routes.remove(ns)
            assert values(ns) == [0, 0, 0]


def test_killed_at_any_moment_it_can_be_undone(pod: Namespace, ns: NetNs) -> None:
    before = routing(pod)
    loop = (
        "import sys\n"
        "from nodenet.capture import pod_routes\n"
        "from nodenet.kernel.netns import NetNs\n"
        "ns = NetNs.open(sys.argv[1])\n"
        "print('x', flush=True)\n"
        "while True:\n"
        "    pod_routes.install(ns)\n"
        "    pod_routes.install(ns, fwmark_accept=False)\n"
        "    pod_routes.install(ns)\n"
        "    pod_routes.remove(ns)\n"
    )
    for _ in range(15):
        with subprocess.Popen(
            [sys.executable, "-c", loop, str(netns.named_path(pod.name))], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        pod_routes.remove(ns)
        assert (routing(pod), values(ns)) == (before, [0, 0, 0])


def test_no_netlink_library_is_loaded(ns: NetNs) -> None:
    """Enrolling a pod must not pay for imports: half a second on a cold start."""
    script = (
        "import sys\n"
        "from nodenet.capture import pod_routes\n"
        "from nodenet.kernel.netns import NetNs\n"
        "with NetNs.open(sys.argv[1]) as ns: ns.addresses(), ns.cookie(), pod_routes.install(ns)\n"
        "print(*sorted({'pyroute2', 'rich', 'psutil', 'bcc', 'asyncio'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, ns.path], check=True, capture_output=True, text=True
    )
    assert done.stdout == "\n"
