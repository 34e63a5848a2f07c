"""Changing how a pod is captured: nothing leaks in between, what fails changes nothing."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from nodenet.capture import iptables
from nodenet.capture.iptables import IptablesMissing
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import ExcludedPort
from nodenet.capture.restoring import restore
from nodenet.capture.session import Capture
from nodenet.kernel import sysctl
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace, Topology
from tests.root.dialling import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]

StandIn = Callable[[Namespace], "subprocess.Popen[bytes]"]
PORT = 80


def attempt(where: Namespace, host: str = "10.99.0.2", port: int = PORT) -> str:
    """One connect from the pod: ``direct`` when the server answered, ``proxy``, or the error."""
    with where.entered():
        client = socket.socket()
    with client:
        client.settimeout(20)
        error = client.connect_ex((host, port))
        if error:
            return errno.errorcode[error]
        try:
            return "direct" if client.recv(1) else "proxy"
        except ConnectionResetError:
            return "proxy"


@pytest.fixture
def server(topology: Topology, pod: Namespace) -> Iterator[Namespace]:
    """The outside, with a server that sends one byte to everyone who reaches it directly."""
    outside = next(n for n in topology.namespaces.values() if n.name != pod.name)
    with outside.entered():
        listener = socket.create_server(("10.99.0.2", PORT), backlog=128)

    def serve() -> None:
        with listener:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with accepted, contextlib.suppress(OSError):  # it may be gone already
                    accepted.sendall(b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield outside
    finally:
        # wakes accept(); close() alone does not
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_change_of_the_backend_leaks_nothing(
    capture: Capture, pod: Namespace, server: Namespace, stand_in: StandIn
) -> None:
    assert attempt(pod) == "direct"
    capture.enroll(pod.path, name="t/pod")
    stand_in(pod)
    seen: set[str] = set()
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            seen.add(attempt(pod))

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(3):
            capture.enroll(pod.path, name="t/pod", options=EnrolOptions(backend="iptables"))
            capture.enroll(pod.path, name="t/pod", options=EnrolOptions(backend="ebpf"))
        wait_for(lambda: "proxy" in seen, "the proxy is reached")
    finally:
        stop.set()
        thread.join()
    assert "direct" not in seen
    with NetNs.open(pod.path) as ns:
        (record,) = capture.records()
        assert record.backend == "ebpf"
        assert iptables.state(ns, record).status == "absent"


def test_a_change_that_fails_leaves_the_pod_captured(
    capture: Capture, pod: Namespace, server: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture.enroll(pod.path, name="t/pod")
    before = list(capture.records())
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(IptablesMissing):
        capture.enroll(pod.path, name="t/pod", options=EnrolOptions(backend="iptables"))
    assert list(capture.records()) == before
    assert attempt(pod) == "ECONNREFUSED"  # captured, and no proxy is there


def test_the_backend_stays_unless_another_is_named(capture: Capture, pod: Namespace) -> None:
    capture.enroll(pod.path, name="t/pod", options=EnrolOptions(backend="iptables"))
    capture.enroll(pod.path, name="t/pod", options=EnrolOptions(dns=True))
    assert [(r.backend, r.dns) for r in capture.records()] == [("iptables", True)]


def test_the_node_and_the_uid_are_changed_too(capture: Capture, pod: Namespace) -> None:
    capture.enroll(pod.path, name="t/pod", node="n1", node_id=1)
    changed = capture.enroll(pod.path, name="t/pod", node="n2", node_id=2, uid="u")
    assert changed.outcome == "changed"
    assert [(r.node, r.node_id, r.uid) for r in capture.records()] == [("n2", 2, "u")]


def test_a_change_of_exclusions_waits_for_nothing(
    capture: Capture, pod: Namespace, server: Namespace
) -> None:
    options = EnrolOptions(exclude_ports=(ExcludedPort("out", 9093),))
    capture.enroll(pod.path, name="t/pod", options=options)
    assert attempt(pod) == "ECONNREFUSED"
    # no proxy listens: the change waits for it, and is not half in force meanwhile
    changed = threading.Thread(
        target=capture.enroll,
        args=(pod.path,),
        kwargs={
            "name": "t/pod",
            "options": EnrolOptions(exclude_ports=(ExcludedPort("out", PORT),)),
            "wait": 1.5,
        },
    )
    changed.start()
    seen = set()
    while changed.is_alive():
        seen.add(attempt(pod))
        if attempt(pod) == "direct":
            changed.join()
    assert "ECONNREFUSED" in seen
    assert attempt(pod) == "direct"
    assert capture.maps["ports"].count() == 1


def test_reset_ends_what_connected_before_the_pod_was_live(
    capture: Capture, pod: Namespace, server: Namespace
) -> None:
    with pod.entered():
        older = socket.create_connection(("10.99.0.2", PORT))
    with older:
        kept = capture.enroll(pod.path, name="t/pod")
        assert (kept.existing, kept.existing_reset) == (1, 0)
        assert older.recv(1) == b"!"
        assert older.recv(1) == b""  # the server has closed its side, ours is open
        reset = capture.enroll(pod.path, name="t/pod", options=EnrolOptions(existing="reset"))
        assert reset.existing_reset == 1
        with pytest.raises(OSError):
            older.send(b"x")


def test_a_failed_connect_leaves_no_trace_on_the_next(
    capture: Capture, pod: Namespace, server: Namespace, stand_in: StandIn
) -> None:
    record = capture.enroll(pod.path, name="t/pod").record
    with pod.entered():
        client = socket.socket()
        taken = socket.create_server(("10.99.0.1", 7777))
    with client, taken:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        assert client.connect_ex(("10.99.0.2", 81)) == errno.ECONNREFUSED
        capture.unenroll(record.netns_cookie)
        client.connect(("10.99.0.2", PORT))
        assert client.getpeername() == ("10.99.0.2", PORT)
        assert client.recv(1) == b"!"
    closed = [v for _, v in capture.maps["closed"].items() if any(v[:8])]
    assert closed == []  # the record of the refused connect went with the enrolment


def test_source_ports_may_be_used_again_while_the_pod_is_captured(
    capture: Capture, pod: Namespace
) -> None:
    def value() -> int | None:
        with pod.entered():
            return sysctl.read_int("net.ipv4.tcp_tw_reuse")

    before = value()
    assert before != 1
    record = capture.enroll(pod.path, name="t/pod").record
    assert value() == 1
    capture.enroll(pod.path, name="t/pod", options=EnrolOptions(direction="in"))
    assert value() == before
    capture.enroll(pod.path, name="t/pod", options=EnrolOptions(dns=True))
    assert value() == 1
    capture.unenroll(record.netns_cookie)
    assert value() == before


def test_a_pod_that_moves_to_another_address_is_enrolled_again(
    capture: Capture, pod: Namespace, stand_in: StandIn
) -> None:
    capture.enroll(pod.path, name="t/pod", options=EnrolOptions(dns=True))
    stand_in(pod)
    pod.run("ip", "addr", "add", "10.99.0.7/24", "dev", "eth0")
    pod.run("ip", "addr", "del", "10.99.0.1/24", "dev", "eth0")
    pod.run("ip", "addr", "add", "10.99.0.7/24", "dev", "eth0", check=False)
    lines: list[str] = []
    (again,) = restore(capture.instance, capture.maps, lines.append)
    assert "10.99.0.7" in again.ips and "10.99.0.1" not in again.ips
    assert again.dns
    assert lines == []
    assert attempt(pod) == "proxy"
    assert restore(capture.instance, capture.maps, lines.append) == []
