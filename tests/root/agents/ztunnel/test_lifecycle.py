"""The process: start, pods coming and going, end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nodenet.agents.ztunnel.process import lock_path
from nodenet.capture.records import record_path
from nodenet.kernel.cgroups import cgroup_of
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace
from tests.root.agents.ztunnel.proxied import Proxied, accept, ends_in_reset, redirect

pytestmark = [pytest.mark.root]


def listening(pod: Namespace) -> set[int]:
    """The TCP ports somebody listens on in a pod's namespace."""
    with NetNs.open(pod.path) as ns, ns.entered():
        # /proc/net follows the thread group's leader, this one the thread
        text = Path("/proc/thread-self/net/tcp6").read_text()
    rows = [line.split() for line in text.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Until a call returns something true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def wait_for_listeners(pod: Namespace) -> None:
    """Until the proxy serves a pod."""
    wait_for(lambda: listening(pod) == {15001, 15006})


def test_it_is_in_its_cgroup_before_it_serves(world: Proxied) -> None:
    proxy = world.proxy()
    assert cgroup_of(proxy.pid).path == world.cgroup.path
    ready = proxy.wait_for(r"(?m)^READY ztunnel (.*)$")[1]
    assert ready == f"instance={world.instance.name} node=- pods=1 pid={proxy.pid}"


def test_its_listeners_bear_the_mark_and_take_both_families(world: Proxied) -> None:
    world.proxy()
    listed = world.pod.run("ss", "-tlneH").stdout.splitlines()
    assert sorted(line.split()[3] for line in listed) == ["*:15001", "*:15006"]
    assert all("fwmark:0x539" in line for line in listed)
    assert all(line.split()[2] == "4096" for line in listed)


def test_without_its_cgroup_it_does_not_start(world: Proxied) -> None:
    command = [sys.executable, "-m", "nodenet.agents.ztunnel", "run", "--id", "nn-none"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 4
    assert ended.stderr.startswith("nodenet: cgroup of the proxy: ")
    assert "nodenet capture enroll" in ended.stderr


def test_a_second_one_says_who_runs_and_another_node_may(world: Proxied) -> None:
    proxy = world.proxy()
    second = world.start()
    assert second.process.wait(30) == 1
    lock = lock_path(world.instance, None)
    assert f"nodenet: already running: pid {proxy.pid} holds {lock}" in second.text()
    assert world.start("--node=other").ready().text().count("pods=0") == 1
    assert listening(world.pod) == {15001, 15006}


def test_a_pods_listeners_come_and_go_with_its_record(world: Proxied) -> None:
    proxy = world.start().ready()
    assert listening(world.pod) == set()
    record = world.enroll()
    wait_for_listeners(world.pod)
    with world.outbound() as (client, server):
        world.unenroll(record)
        wait_for(lambda: listening(world.pod) == set())
        client.sendall(b"goes on")
        assert server.recv(10) == b"goes on"
        proxy.wait_for("removed, 1 connections left")
    world.enroll()
    wait_for_listeners(world.pod)
    world.enroll(name="renamed")
    proxy.wait_for("pod renamed has changed")
    assert proxy.text().count("serving pod") == 2


def test_a_changed_backend_is_taken_over_without_touching_listeners(world: Proxied) -> None:
    proxy = world.proxy()
    world.enroll(backend="iptables")
    proxy.wait_for("has changed")
    world.enroll(node="other")
    wait_for(lambda: listening(world.pod) == set())


def test_only_the_pods_of_its_node(world: Proxied) -> None:
    world.enroll(node="two")
    proxies = [world.start("--node=one").ready(), world.start("--node=two").ready()]
    assert [p.text().count("serving pod") for p in proxies] == [0, 1]


def test_a_pod_whose_ports_are_taken_is_served_when_they_are_free(world: Proxied) -> None:
    proxy = world.start().ready()
    with world.listen(world.pod, 15006):
        world.enroll()
        proxy.wait_for("cannot listen on port 15006: Address already in use; see who has it")
        assert listening(world.pod) == {15006}
    wait_for_listeners(world.pod)
    assert proxy.text().count("cannot listen") == 1


def test_a_record_of_another_namespace_is_not_served(world: Proxied) -> None:
    world.enroll(netns_cookie=world.record().netns_cookie + 1_000_000)
    proxy = world.start().ready()
    proxy.wait_for("is another namespace than the one enrolled")
    assert listening(world.pod) == set()


def test_a_second_record_of_a_namespace_is_refused(world: Proxied) -> None:
    proxy = world.proxy()
    first = record_path(world.instance, world.record().netns_cookie)
    (first.parent / "copy.json").write_bytes(first.read_bytes())
    proxy.wait_for(f"its namespace is served as {world.pod.name} already")
    assert listening(world.pod) == {15001, 15006}


def test_a_removed_namespace_takes_its_connections_along(world: Proxied) -> None:
    """Its path goes first, as with `ip netns delete`; the record may stay behind."""
    proxy = world.proxy()
    fds, memory = proxy.fds(), proxy.rss_kib()
    with world.listen(world.out) as listener:
        port = listener.getsockname()[1]
        for round_ in range(5):
            name = f"later{round_}"
            pod = another_pod(world, name)
            record = world.enroll(pod)
            wait_for_listeners(pod)
            with contextlib.ExitStack() as stack:
                clients, servers = [], []
                for _ in range(20):
                    clients.append(stack.enter_context(world.connect(pod, "10.98.0.2", port)))
                    clients[-1].sendall(b"x")
                    servers.append(stack.enter_context(accept(listener)))
                    assert servers[-1].recv(1) == b"x"
                subprocess.run(["ip", "netns", "delete", pod.name], check=True)
                # the test's own sockets in it do not count: only processes and paths do
                proxy.wait_for(f"namespace of pod {pod.name} is gone, 20 cut")
                assert all(map(ends_in_reset, (*clients, *servers)))
            # a descriptor that was on its way when the first count was taken is no leak
            most = fds + (2 if round_ == 0 else 0)

            def steady(most: int = most) -> bool:
                return proxy.fds() <= most

            wait_for(steady)
            fds = proxy.fds()
            world.unenroll(record)
    assert proxy.rss_kib() - memory < 4 * 1024
    with world.outbound() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"


def test_a_namespace_a_process_still_uses_is_served_until_it_ends(world: Proxied) -> None:
    proxy = world.start("--log-level=debug").ready()
    pod = another_pod(world, "kept")
    keeper = pod.popen(["sleep", "60"])
    try:
        record = world.record(pod)
        world.enroll(pod)
        wait_for_listeners(pod)
        subprocess.run(["ip", "netns", "delete", pod.name], check=True)
        proxy.wait_for(f"no longer leads to netns {record.netns_inode}, still used by {keeper.pid}")
        assert "is gone" not in proxy.text()
    finally:
        keeper.kill()
        keeper.wait()
    proxy.wait_for(f"namespace of pod {pod.name} is gone")


def test_a_namespace_named_by_a_process_ends_with_it(world: Proxied) -> None:
    proxy = world.start().ready()
    pod = another_pod(world, "pid")
    keeper = pod.popen(["sleep", "60"])
    try:
        world.enroll(pod, netns=f"/proc/{keeper.pid}/ns/net")
        wait_for_listeners(pod)
        subprocess.run(["ip", "netns", "delete", pod.name], check=True)
        assert "is gone" not in proxy.text()
    finally:
        keeper.kill()
        keeper.wait()
    proxy.wait_for(f"namespace of pod {pod.name} is gone")


def test_sigterm_lets_open_connections_finish(world: Proxied) -> None:
    proxy = world.proxy("--drain=30")
    with world.outbound() as (client, server):
        client.sendall(b"one")
        assert server.recv(10) == b"one"
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_for("draining: 1 connections")
        wait_for(lambda: listening(world.pod) == set())
        server.sendall(b"two")
        assert client.recv(10) == b"two"
        assert proxy.process.poll() is None
    assert proxy.process.wait(30) == 0
    assert "drained: 0 connections cut" in proxy.text()
    assert not lock_path(world.instance, None).exists()


@pytest.mark.parametrize("how", ["deadline", "second signal"])
def test_what_does_not_finish_is_reset(world: Proxied, how: str) -> None:
    proxy = world.proxy("--drain=0.2" if how == "deadline" else "--drain=60")
    with world.outbound() as (client, server), world.inbound() as (other, app):
        for one, two in ((client, server), (other, app)):
            one.sendall(b"x")
            assert two.recv(1) == b"x"
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_for("draining: 2 connections")
        if how == "second signal":
            proxy.process.send_signal(signal.SIGTERM)
        assert all(map(ends_in_reset, (client, server, other, app)))
    assert proxy.process.wait(30) == 0
    assert "2 connections cut" in proxy.text()


def test_killed_and_started_again_it_serves_at_once(world: Proxied) -> None:
    proxy = world.proxy()
    with world.outbound() as (client, server):
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        assert proxy.stop(signal.SIGKILL) == -signal.SIGKILL
        # sockets of the killed process are still around in every state
        world.start().ready().wait_for("serving pod")
        with world.outbound() as (again, other):
            again.sendall(b"y")
            assert other.recv(1) == b"y"


def test_systemd_is_told(world: Proxied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(30)
        monkeypatch.setitem(os.environ, "NOTIFY_SOCKET", str(path))
        proxy = world.proxy()
        assert manager.recv(100) == b"READY=1"
        proxy.process.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"


def another_pod(world: Proxied, name: str) -> Namespace:
    """A second pod with a link of its own to the outside, redirected like the first."""
    pod = world.topology.namespace(name)
    with pod.netlink() as link:
        link.veth("eth0", world.out, f"to-{name}"[:15])
        link.address("eth0", "10.98.0.1/24")
        link.up("eth0")
    with world.out.netlink() as link:
        link.address(f"to-{name}"[:15], "10.98.0.2/24")
        link.up(f"to-{name}"[:15])
    redirect(pod, world.backend)
    return pod
