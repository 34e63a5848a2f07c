"""What is gone is forgotten, what lives is kept: namespaces, map entries, links, policy routes."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from nodenet import abi
from nodenet.abi import PodFlag
from nodenet.capture import pod_maps, pod_routes, reaping
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import (
    ExcludedPort,
    PodRecord,
    read_record,
    record_path,
    remove_record,
    write_record,
)
from nodenet.capture.session import Capture
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace, Topology, remove_namespace
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

IP_TRANSPARENT = 19
#: No namespace has it: cookies count up from one.
NOBODY = 1 << 60
OPTIONS = EnrolOptions(
    exclude_ports=(ExcludedPort("in", 9),),
    exclude_cidrs=(ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")),
)
#: Removes everything and ends at once when it has removed so many files.
KILLED_REMOVAL = """
import os, pathlib, sys
from nodenet.capture.session import Capture, remove_instance
from nodenet.paths import Instance
instance, left, opened = Instance(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
unlink = pathlib.Path.unlink
def counted(path, missing_ok=False):
    global left
    if left == 0:
        os._exit(9)
    left -= 1
    unlink(path, missing_ok=missing_ok)
pathlib.Path.unlink = counted
if opened:
    Capture.open(instance).remove_all()
else:
    remove_instance(instance)
"""
TABLES = ("pods", "lips", "ports", "cidrs", "agg")


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def enroll(
    capture: Capture, pod: Namespace, name: str = "t/pod", options: EnrolOptions = OPTIONS
) -> PodRecord:
    return capture.enroll(pod.path, name=name, options=options).record


def entries(capture: Capture) -> dict[str, list[bytes]]:
    """The keys of every map that is about pods."""
    return {name: sorted(key for key, _ in capture.maps[name].items()) for name in TABLES}


def links(capture: Capture) -> set[int]:
    return {int(pin.name) for pin in (capture.instance.links / "sk_lookup").iterdir()}


def reap(capture: Capture) -> tuple[list[str], list[str]]:
    """The names of the pods it forgot, and what it said."""
    said: list[str] = []
    gone = reaping.reap(capture.instance, capture.maps, said.append)
    return [record.name for record in gone], said


@contextlib.contextmanager
def sleeper(where: Namespace) -> Iterator[int]:
    """A process in a namespace; its pid."""
    with where.popen(["sleep", "60"]) as child:
        try:
            yield child.pid
        finally:
            child.kill()


# namespaces


def test_a_namespace_is_found_by_a_process_when_its_path_has_gone(
    capture: Capture, topology: Topology
) -> None:
    pod = topology.pair()[0]
    with sleeper(pod) as first, sleeper(pod) as second:
        record = capture.enroll(f"/proc/{first}/ns/net", name="t/pod").record
        record = replace(record, netns=f"/proc/{first}/ns/net")
        remove_namespace(topology.namespaces.pop("l").name)
        subprocess.run(["kill", "-9", str(first)], check=True)
        wait_until(lambda: _ends(f"/proc/{first}/ns/net"))
        write_record(capture.instance, record)
        found = reaping.open_namespace(record)
        assert found is not None
        with found:
            assert (found.path, found.cookie()) == (f"/proc/{second}/ns/net", record.netns_cookie)
        assert reap(capture) == ([], [])
    assert reaping.open_namespace(record) is None
    assert reap(capture) == (["t/pod"], [])


def _ends(path: str) -> bool:
    try:
        NetNs.open(path).close()
    except Exception:
        return True
    return False


def test_an_inode_that_another_namespace_got_is_not_the_pod(
    capture: Capture, pod: Namespace
) -> None:
    record = enroll(capture, pod)
    # as the kernel would do it: the same path and inode, another cookie
    reused = replace(record, name="t/old", netns_cookie=NOBODY)
    write_record(capture.instance, reused)
    with sleeper(pod):
        assert reaping.open_namespace(reused) is None
        assert reap(capture) == (["t/old"], [])
    assert read_record(record_path(capture.instance, record.netns_cookie)) == record


def test_a_path_that_names_another_namespace_is_not_the_pod(
    capture: Capture, topology: Topology
) -> None:
    left, right = topology.pair()
    record = enroll(capture, left)
    write_record(capture.instance, replace(record, netns=str(right.path)))
    assert reap(capture) == (["t/pod"], [])


# map entries and links


def test_entries_without_a_record_go_and_all_others_stay(capture: Capture, pod: Namespace) -> None:
    record = enroll(capture, pod)
    before = entries(capture)
    linked = links(capture)
    orphan = replace(record, netns_cookie=NOBODY, pod_id=7, ips=("10.97.0.1", "fe80::7"))
    addresses = pod_maps.PodAddresses.choose(map(ipaddress.ip_address, orphan.ips))
    value = pod_maps.pod_value(addresses, NOBODY, pod_maps.flags_of(orphan), 0)
    capture.maps["pods"].update(pod_maps.netns_key(NOBODY), value)
    pod_maps.write_addresses(capture.maps, addresses, NOBODY, 0)
    pod_maps.write_exclusions(capture.maps, orphan)
    key = abi.AGG_KEY.pack(pod_id=NOBODY + 7 & 0xFFFFFFFF, dir=0, reason=1, via=1)
    capture.maps["agg"].update(key, bytes(capture.maps["agg"].value_stride))
    assert all(len(keys) > len(before[name]) for name, keys in entries(capture).items())
    assert reap(capture) == ([], [])
    assert entries(capture) == before
    assert links(capture) == linked


def test_a_captured_pod_that_lost_its_record_stays_captured(
    capture: Capture, pod: Namespace
) -> None:
    record = enroll(capture, pod)
    before = entries(capture)
    remove_record(capture.instance, record.netns_cookie)
    gone, (said,) = reap(capture)
    assert not gone
    assert said.startswith(f"netns cookie {record.netns_cookie} is captured and has no record in")
    assert entries(capture) == before
    assert links(capture) == {record.netns_cookie}
    assert enroll(capture, pod).netns_cookie == record.netns_cookie
    assert reap(capture) == ([], [])


def test_a_lost_record_of_a_namespace_that_is_gone_leaves_nothing(
    capture: Capture, topology: Topology
) -> None:
    record = enroll(capture, topology.pair()[0])
    remove_record(capture.instance, record.netns_cookie)
    topology.close()
    wait_until(lambda: reap(capture) == ([], []))
    assert record.netns_cookie not in links(capture)
    hosts = {pod_maps.netns_key(c) for c in _hosts(capture)}
    assert entries(capture) == {name: [] for name in TABLES} | {"pods": sorted(hosts)}
    assert hosts


def _hosts(capture: Capture) -> set[int]:
    return {
        int(abi.NETNS_KEY.unpack(key)["netns_cookie"])
        for key, value in capture.maps["pods"].items()
        if int(abi.POD.unpack(value)["flags"]) & PodFlag.HOST
    }


def test_an_entry_that_is_not_live_and_has_no_record_goes(capture: Capture, pod: Namespace) -> None:
    record = enroll(capture, pod)
    key = pod_maps.netns_key(record.netns_cookie)
    raw = capture.maps["pods"].lookup(key)
    assert raw is not None
    capture.maps["pods"].update(key, abi.POD.pack(**(abi.POD.unpack(raw) | {"flags": 0})))
    remove_record(capture.instance, record.netns_cookie)
    assert reap(capture) == ([], [])
    assert capture.maps["pods"].lookup(key) is None
    assert links(capture) == set()


def test_a_link_that_a_killed_enrolment_pinned_beside_the_first_goes(
    capture: Capture, pod: Namespace
) -> None:
    record = enroll(capture, pod)
    pin = capture.instance.links / "sk_lookup" / str(record.netns_cookie)
    pin.rename(pin.with_name(f"{pin.name}~"))
    capture.unenroll(record.netns_cookie)
    enroll(capture, pod)
    reap(capture)
    assert list(pin.parent.iterdir()) == [pin]


def test_a_record_that_cannot_be_read_keeps_its_pod_and_stops_no_other(
    capture: Capture, topology: Topology, pod: Namespace
) -> None:
    record = enroll(capture, pod)
    before = entries(capture)
    with Topology() as other:
        gone_pod = other.namespace("gone")
        with gone_pod.netlink() as link:
            link.address("lo", "10.98.0.1/32")
        enroll(capture, gone_pod, "t/gone")
        path = record_path(capture.instance, record.netns_cookie)
        path.write_text("{")
    gone, (said,) = reap(capture)
    assert gone == ["t/gone"]
    assert said.startswith(f"enrolment record cannot be read: {path}")
    assert entries(capture) == before
    assert links(capture) == {record.netns_cookie}


@pytest.mark.parametrize("opened", [True, False])
def test_a_removal_that_was_killed_leaves_no_exclusion_without_a_record(
    topology: Topology, instance: Instance, opened: bool
) -> None:
    """Killed at each step of taking two pods out: enrolled again, they exclude nothing."""
    pods = {name: topology.namespace(name) for name in ("a", "b")}
    for number, pod in enumerate(pods.values(), start=1):
        with pod.netlink() as link:
            link.address("lo", f"10.98.0.{number}/32")
    for left in range(6):
        with Capture.open_or_load(instance) as capture:
            for name, pod in pods.items():
                enroll(capture, pod, name)
        command = [sys.executable, "-c", KILLED_REMOVAL, str(instance.id), str(left)]
        assert subprocess.run([*command, str(int(opened))], check=False).returncode == 9
        with Capture.open_or_load(instance) as capture:
            for name, pod in pods.items():
                enroll(capture, pod, name, EnrolOptions())
            assert not capture.maps["ports"].count()
            assert not capture.maps["cidrs"].count()


def test_everything_goes_although_one_record_cannot_be_read(
    capture: Capture, pod: Namespace, instance: Instance
) -> None:
    enroll(capture, pod)
    record_path(instance, NOBODY).write_text("{")
    assert [r.name for r in capture.remove_all()] == ["t/pod"]
    with NetNs.open(pod.path) as ns:
        assert pod_routes.check(ns)
    assert not instance.run.exists()
    assert not instance.pins.exists()


# routes that a connection needs


@contextlib.contextmanager
def proxied(pod: Namespace) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection as the proxy makes it: to the app, from a remote client's address.

    Made before the pod is captured, for this process is not in the proxy's cgroup.
    """
    with NetNs.open(pod.path) as ns:
        pod_routes.install(ns)
    with pod.entered():
        app = socket.create_server(("10.99.0.1", 8080))
        dialled = socket.socket()
    with app, dialled:
        dialled.settimeout(20)
        dialled.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
        dialled.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, abi.TRANSPARENT_MARK)
        dialled.bind(("10.99.0.2", 0))
        dialled.connect(("10.99.0.1", 8080))
        accepted, _ = app.accept()
        with accepted:
            accepted.settimeout(20)
            yield dialled, accepted


def carries(connection: tuple[socket.socket, socket.socket]) -> bool:
    """Both ways, through a route that only the mark leads to."""
    one, other = connection
    one.sendall(b"there")
    other.sendall(b"back")
    return (other.recv(5), one.recv(4)) == (b"there", b"back")


def routes_are_there(pod: Namespace) -> bool:
    with NetNs.open(pod.path) as ns:
        return not pod_routes.check(ns)


def kept(instance: Instance) -> list[str]:
    """The files that remember routes."""
    directory = instance.run / "routes"
    return sorted(p.name for p in directory.iterdir()) if directory.is_dir() else []


def unneeded(pod: Namespace) -> bool:
    with NetNs.open(pod.path) as ns:
        return not reaping.proxied_inbound(ns, reaping.own_addresses(ns))


def test_removing_everything_leaves_a_proxied_connection_its_routes(
    capture: Capture, pod: Namespace, instance: Instance
) -> None:
    with proxied(pod) as connection:
        record = enroll(capture, pod)
        assert carries(connection)
        assert not unneeded(pod)
        capture.remove_all()
        assert carries(connection)
        assert kept(instance) == [f"{record.netns_cookie}.json"]
        assert reaping.reap(instance, None) == []
        assert carries(connection)
    wait_until(lambda: unneeded(pod))
    assert routes_are_there(pod)
    reaping.reap(instance, None)
    assert not routes_are_there(pod)
    assert kept(instance) == []


def test_routes_an_unenrolment_left_go_after_the_last_connection(
    capture: Capture, pod: Namespace, instance: Instance
) -> None:
    with proxied(pod) as connection:
        record = enroll(capture, pod)
        assert capture.unenroll(record.netns_cookie).routes_kept
        reap(capture)
        assert carries(connection)
    wait_until(lambda: unneeded(pod))
    reap(capture)
    assert not routes_are_there(pod)
    assert kept(instance) == []


def test_routes_nobody_needs_go_with_everything(
    capture: Capture, pod: Namespace, instance: Instance
) -> None:
    enroll(capture, pod)
    with pod.entered():
        app = socket.create_server(("10.99.0.1", 8080))
        client = socket.create_connection(("10.99.0.1", 8080))
    with app, client:  # a connection of the pod with itself needs none
        capture.remove_all()
    assert not routes_are_there(pod)
    assert kept(instance) == []


def test_routes_of_a_pod_that_is_enrolled_again_stay(
    capture: Capture, pod: Namespace, instance: Instance
) -> None:
    record = enroll(capture, pod)
    with NetNs.open(pod.path) as ns:
        reaping.remember_routes(instance, ns, record)
    reap(capture)
    assert kept(instance) == []
    assert routes_are_there(pod)


def test_routes_of_a_pod_enrolled_again_without_inbound_go(
    capture: Capture, pod: Namespace, instance: Instance
) -> None:
    record = enroll(capture, pod, options=EnrolOptions(direction="out"))
    with NetNs.open(pod.path) as ns:
        pod_routes.install(ns)
        reaping.remember_routes(instance, ns, record)
    reap(capture)
    assert kept(instance) == []
    assert not routes_are_there(pod)


def test_routes_of_a_namespace_that_is_gone_are_forgotten(
    capture: Capture, topology: Topology, instance: Instance
) -> None:
    pod = topology.pair()[0]
    record = enroll(capture, pod)
    with NetNs.open(pod.path) as ns:
        reaping.remember_routes(instance, ns, record)
    (instance.run / "routes" / f".{NOBODY}.json.1").write_text("{")  # of a writer that was killed
    topology.close()
    reap(capture)
    assert not (instance.run / "routes").exists()
