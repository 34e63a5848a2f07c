"""Namespaces for real: made, entered, identified, removed, and what a kill in between leaves."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.kernel import netns, sysctl
from nodenet.kernel.netns import (
    NetNs,
    NetNsExists,
    NetNsGone,
    NetNsInterleaved,
    NotANetNs,
    run_in,
)
from nodenet.lab.topology import Topology

pytestmark = [pytest.mark.root]


def here() -> int:
    return os.stat("/proc/thread-self/ns/net").st_ino


@pytest.fixture
def name() -> Iterator[str]:
    """A free name; whatever the test left there is removed."""
    chosen = f"nn-{secrets.token_hex(4)}"
    yield chosen
    try:
        netns.delete(chosen)
    except NetNsGone:
        pass


@pytest.fixture
def ns(name: str) -> Iterator[NetNs]:
    with netns.create(name) as made:
        yield made


def test_a_new_namespace_is_what_ip_netns_shows(name: str, ns: NetNs) -> None:
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    assert name in listed.stdout.split()
    assert name in netns.names()
    assert ns.path == f"/run/netns/{name}"
    assert ns.inode != here() and not ns.is_host()
    inside = subprocess.run(
        ["ip", "-n", name, "-br", "link"], check=True, capture_output=True, text=True
    )
    assert inside.stdout.startswith("lo ")
    with pytest.raises(NetNsExists):
        netns.create(name)


def test_its_settings_are_its_own(ns: NetNs) -> None:
    setting = "net.ipv4.ip_default_ttl"
    before = sysctl.read_int(setting)
    with ns.sysctls() as sysctls:
        sysctls.write_int(setting, 77)
    with ns.sysctls() as sysctls:
        assert sysctls.read_int(setting) == 77
    assert run_in(ns, lambda: sysctl.read_int(setting)) == 77
    assert sysctl.read_int(setting) == before


def test_ip_netns_and_ours_remove_each_others(name: str) -> None:
    netns.create(name).close()
    subprocess.run(["ip", "netns", "delete", name], check=True)
    assert name not in netns.names()
    subprocess.run(["ip", "netns", "add", name], check=True)
    NetNs.named(name).close()
    netns.delete(name)
    assert not os.path.lexists(f"/run/netns/{name}")
    with pytest.raises(NetNsGone):
        netns.delete(name)


def test_no_process_stays_to_hold_it(ns: NetNs) -> None:
    holders = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "ns" / "net").stat().st_ino == ns.inode:
                    holders.append(entry.name)
            except OSError:
                continue
    assert holders == []


def test_what_a_killed_creator_left_is_taken_over(name: str) -> None:
    path = netns.named_path(name)
    path.touch(mode=0)  # the state between making the file and mounting on it
    with pytest.raises(NotANetNs):
        NetNs.named(name)
    with netns.create(name) as made, NetNs.named(name) as again:
        assert made.inode == again.inode


def test_killed_at_any_moment_it_can_be_made_again(name: str) -> None:
    """A child makes and removes the same name as fast as it can and is killed, 20 times."""
    loop = (
        "import sys; from nodenet.kernel import netns\n"
        "print('x', flush=True)\n"
        "while True:\n"
        "    try: netns.create(sys.argv[1]).close()\n"
        "    except netns.NetNsExists: pass\n"
        "    netns.delete(sys.argv[1])\n"
    )
    for _ in range(20):
        with subprocess.Popen([sys.executable, "-c", loop, name], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        try:
            made = netns.create(name)
        except NetNsExists:
            made = NetNs.named(name)
        with made:
            assert run_in(made, here) == made.inode
        netns.delete(name)
        assert name not in netns.names()


def test_the_thread_comes_back_also_from_an_error(ns: NetNs) -> None:
    outside = here()
    with ns.entered() as inside:
        assert inside is ns
        assert here() == ns.inode
    assert here() == outside
    with pytest.raises(ZeroDivisionError), ns.entered():
        raise ZeroDivisionError
    assert here() == outside
    with ns.entered():
        with NetNs.host() as host, host.entered():
            assert here() == host.inode
        assert here() == ns.inode
    assert here() == outside


def test_a_block_inside_another_of_the_same_namespace_moves_nobody(ns: NetNs) -> None:
    outside = here()
    with ns.entered():
        with ns.entered():
            assert here() == ns.inode
            with NetNs.host() as host, host.entered(), ns.entered():
                assert here() == ns.inode
        assert here() == ns.inode
        with pytest.raises(ZeroDivisionError), ns.entered():
            raise ZeroDivisionError
        assert here() == ns.inode
    assert here() == outside


def test_after_blocks_that_interleaved_a_block_still_enters(ns: NetNs) -> None:
    """As after an await in a block: the first is left while the second is open."""
    seen: list[int] = []

    def interleave() -> None:
        first, second = ns.entered(), ns.entered()
        first.__enter__()
        second.__enter__()
        with pytest.raises(NetNsInterleaved):
            first.__exit__(None, None, None)
        with ns.entered():
            seen.append(here())
        second.__exit__(None, None, None)
        seen.append(here())

    outside = here()
    thread = threading.Thread(target=interleave)
    thread.start()
    thread.join()
    assert seen == [ns.inode, outside]


def test_only_the_thread_that_enters_moves(ns: NetNs) -> None:
    outside = here()
    entered, leave = threading.Event(), threading.Event()
    seen: list[int] = []

    def stay() -> None:
        with ns.entered():
            seen.append(here())
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(10)
    assert here() == outside
    assert os.stat("/proc/self/ns/net").st_ino == outside
    leave.set()
    thread.join()
    assert seen == [ns.inode]


def test_cookies_are_the_sockets_own_and_differ(ns: NetNs) -> None:
    with Topology() as topology:
        other = topology.namespace("x")
        with NetNs.open(other.path) as second, NetNs.host() as host:
            cookies = {ns.cookie(), second.cookie(), host.cookie()}
            assert len(cookies) == 3
            with second.open_socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
                raw = sock.getsockopt(socket.SOL_SOCKET, 71, 8)
                assert int.from_bytes(raw, sys.byteorder) == second.cookie()


def test_addresses_are_those_of_the_namespace() -> None:
    with Topology() as topology:
        left, _right = topology.pair()
        with NetNs.open(left.path) as inside:
            found = inside.addresses()
    shown = {str(a.interface) for a in found if not a.interface.ip.is_link_local}
    assert shown == {"127.0.0.1/8", "::1/128", "10.99.0.1/24", "fd99::1/64"}
    scopes = {str(a.interface.ip): (a.ifindex == 1, a.scope) for a in found}
    assert scopes["127.0.0.1"] == (True, 254)
    assert scopes["10.99.0.1"] == (False, 0)


def test_the_local_end_of_a_point_to_point_link(name: str, ns: NetNs) -> None:
    for command in (
        "link add eth0 type veth peer name eth1",
        "addr add 10.1.1.1 peer 10.1.1.2/32 dev eth0",
    ):
        subprocess.run(["ip", "-n", name, *command.split()], check=True)
    assert "10.1.1.1/32" in {str(a.interface) for a in ns.addresses()}


def test_sysctls_are_those_of_the_threads_namespace(ns: NetNs) -> None:
    setting = "net.ipv4.tcp_fwmark_accept"
    outside = sysctl.read_int(setting)
    with ns.entered():
        sysctl.write_int(setting, 1)
        assert sysctl.read_int(setting) == 1
    assert sysctl.read_int(setting) == outside
    with ns.entered():
        assert not sysctl.ipv6_on_loopback() or sysctl.read_int("net.ipv6.conf.lo.forwarding") == 0


def test_a_process_leads_to_its_namespace(ns: NetNs) -> None:
    with ns.entered():
        child = subprocess.Popen(["sleep", "100"])
    try:
        with NetNs.of_pid(child.pid) as its:
            assert (its.inode, its.cookie()) == (ns.inode, ns.cookie())
    finally:
        child.kill()
        child.wait()
    with pytest.raises(NetNsGone) as raised:
        NetNs.of_pid(child.pid)
    assert "the process has ended" in raised.value.line()


def test_an_open_namespace_outlives_its_name(name: str) -> None:
    with netns.create(name) as ns:
        cookie = ns.cookie()
        netns.delete(name)
        assert run_in(ns, here) == ns.inode
        with NetNs(os.dup(ns.fd), "received") as copy:
            assert copy.cookie() == cookie
