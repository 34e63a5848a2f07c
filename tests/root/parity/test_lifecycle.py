"""Enrolling, changing and un-enrolling while connections are alive and others are made."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, NamedTuple

import pytest

from nodenet.abi import INBOUND_PORT, MARK, IPAddress
from nodenet.capture import pod_routes, programs
from nodenet.capture.iptables_rules import PREROUTING
from nodenet.capture.options import EnrolOptions, parse_excluded_ports
from nodenet.capture.pod_maps import lip_key, netns_key
from nodenet.capture.verify import verify
from nodenet.kernel.netns import NetNs
from nodenet.lab.rules import count_rules
from nodenet.lab.topology import Namespace, remove_namespace
from tests.root.dialling import connected, dial, is_alive, is_ended, wait_for
from tests.root.parity.cases import Case, only_ebpf
from tests.root.parity.rows import parity
from tests.root.recording import Recorder
from tests.root.world import APP_PORT, NODE_ID, SECOND_PORT, World

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@parity("P24", rules=("O2", "I3"))
@pytest.mark.parametrize("existing", ["keep", "reset"])
def test_connections_older_than_the_enrolment(case: Case, existing: str) -> None:
    world, a = case.world, case.a
    world.unenroll()
    with (
        connected(world.pod, a.outside, APP_PORT) as (out, by_server),
        connected(world.outside, a.pod, APP_PORT) as (inbound, by_app),
        connected(world.pod, a.pod, APP_PORT) as (own, by_itself),
    ):
        assert (by_server.by, by_app.by, by_itself.by) == ("server", "app", "app")
        result = world.enroll(existing=existing)
        assert result.existing == 2
        assert result.existing_reset == (2 if existing == "reset" else 0)
        assert is_alive(own)
        if existing == "reset":
            assert is_ended(out) and is_ended(inbound)
        elif case.ebpf:
            # they go on, uncaptured
            assert is_alive(out) and is_alive(inbound)
        else:
            # mid-stream packets are new to conntrack: redirected, and reset by the proxy's port
            assert not is_alive(out)
            assert not is_alive(inbound)
    assert case.connect(a.outside, APP_PORT).verdict == "captured O8"


@parity("P25", rules=("O2",))
@pytest.mark.parametrize("existing", ["keep", "reset"])
def test_captured_connections_when_the_pod_is_taken_out(case: Case, existing: str) -> None:
    world, a = case.world, case.a
    with (
        connected(world.pod, a.outside, APP_PORT) as (out, outbound),
        connected(world.outside, a.pod, APP_PORT) as (client, inbound),
    ):
        assert (outbound.by, inbound.by) == ("proxy", "proxy")
        result = world.unenroll("keep" if existing == "keep" else "reset")
        assert result.existing == 2
        assert result.existing_reset == (2 if existing == "reset" else 0)
        if existing == "reset":
            assert is_ended(out) and is_ended(client)
        elif case.ebpf:
            assert is_alive(out) and is_alive(client)
        else:
            # conntrack has gone with the rules, so nobody translates the answers
            assert not is_alive(out)
            assert not is_alive(client)
    seen = case.connect(a.outside, APP_PORT)
    assert seen.verdict == "bypassed O2"
    assert seen.greeting.by == "server"
    assert dial(world.outside, a.pod, APP_PORT).by == "app"


@parity("P15", "P25", rules=("I8",))
@only_ebpf
def test_a_relayed_connection_outlives_the_enrolment(case: Case) -> None:
    # its answers find back by the policy routes, so those stay as long as it does
    world, a = case.world, case.a
    _local, greeting = world.proxy.dial(a.pod, APP_PORT, source=a.outside, mark=MARK, hold=True)
    assert (greeting.by, greeting.peer[0]) == ("app", a.outside)
    assert world.unenroll().routes_kept
    assert world.proxy.echoing(let_go=True) == 1
    world.enroll()
    assert not world.unenroll().routes_kept


@pytest.fixture
def tracking(world: World) -> Iterator[None]:
    """A rule of the pod's own that has connections tracked before any enrolment."""
    rule = ["INPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "ACCEPT"]
    for program in ("iptables", "ip6tables"):
        world.pod.run(program, "-w", "-A", *rule)
    yield
    for program in ("iptables", "ip6tables"):
        world.pod.run(program, "-w", "-D", *rule)


@parity("P24", rules=("O2", "I3"))
@pytest.mark.usefixtures("tracking")
def test_connections_that_were_tracked_before_the_enrolment_go_on(case: Case) -> None:
    world, a = case.world, case.a
    world.unenroll()
    with (
        connected(world.pod, a.outside, APP_PORT) as (out, by_server),
        connected(world.outside, a.pod, APP_PORT) as (inbound, by_app),
    ):
        assert (by_server.by, by_app.by) == ("server", "app")
        world.enroll()
        assert is_alive(out) and is_alive(inbound)
    assert case.connect(a.outside, APP_PORT).verdict == "captured O8"


@parity("P32", rules=("O8", "I10"))
def test_a_second_enrolment_changes_nothing(case: Case) -> None:
    world, a = case.world, case.a
    with connected(world.pod, a.outside, APP_PORT) as (out, _greeting):
        before = world.enrolled()
        again = world.enroll()
        assert again.outcome == "unchanged"
        assert world.enrolled() == before
        assert is_alive(out)
    assert case.connect(a.outside, APP_PORT).verdict == "captured O8"
    assert case.arrive(APP_PORT).verdict == "captured I10"


@parity("P32", rules=("O8",))
def test_a_damaged_enrolment_is_made_whole(case: Case) -> None:
    # as after a kill in the middle, or somebody's flush
    world, a = case.world, case.a
    instance, maps = world.capture.instance, world.capture.maps
    if case.ebpf:
        programs.detach_pod(instance, world.netns_cookie)
        with NetNs.open(world.pod.path) as ns:
            pod_routes.remove(ns)
    else:
        for program in ("iptables", "ip6tables"):
            world.pod.run(program, "-w", "-t", "nat", "-F", PREROUTING)
    damaged = world.enrolled()
    assert damaged is not None
    assert not verify(instance, maps, damaged).ok
    # a link ends some time after its last pin has gone
    wait_for(lambda: dial(world.outside, a.pod, APP_PORT).by == "app", "inbound is uncaptured")
    assert world.enroll().outcome == "changed"
    assert case.connect(a.outside, APP_PORT).verdict == "captured O8"
    assert case.arrive(APP_PORT).verdict == "captured I10"
    assert verify(instance, maps, damaged).ok


@contextlib.contextmanager
def hammering(case: Case, port: int) -> Iterator[list[str | None]]:
    """Connects again and again meanwhile; who answered, at least once before and after."""
    seen: list[str | None] = []
    done = threading.Event()
    going = threading.Event()

    def connect() -> None:
        while not done.is_set():
            seen.append(dial(case.world.pod, case.a.outside, port).by)
            going.set()

    thread = threading.Thread(target=connect)
    thread.start()
    going.wait(10)
    try:
        yield seen
    finally:
        count = len(seen)
        while len(seen) <= count + 1 and thread.is_alive():
            going.wait(0.001)
        done.set()
        thread.join()


@parity("X3", rules=("O8", "O6"))
def test_options_change_without_a_gap(case: Case) -> None:
    world = case.world
    changes: Iterator[dict[str, Any]] = itertools.cycle(
        [
            {"exclude_ports": parse_excluded_ports([f"out:{SECOND_PORT}"])},
            {"dns": True},
            {"exclude_ports": parse_excluded_ports([f"{SECOND_PORT}"]), "mode": "ingress"},
            {},
        ]
    )
    with hammering(case, APP_PORT) as seen:
        for options in itertools.islice(changes, 40 if case.ebpf else 8):
            assert world.enroll(**options).outcome == "changed"
    assert set(seen) == {"proxy"}


CHILD = """
import os, signal, sys
from nodenet.capture.options import EnrolOptions
from nodenet.capture.session import Capture
from nodenet.paths import Instance
capture = Capture.open(Instance(sys.argv[1]))
capture.enroll(sys.argv[2], name="t/pod", node_id=1, options=EnrolOptions(backend=sys.argv[3]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@parity("P27", rules=("O8", "I10"))
def test_the_death_of_who_enrolled_changes_nothing(case: Case) -> None:
    world = case.world
    world.unenroll()
    instance = world.capture.instance.id
    assert instance is not None
    child = subprocess.run(
        [sys.executable, "-c", CHILD, instance, str(world.pod.path), world.backend], check=False
    )
    assert child.returncode == -9
    assert case.connect(case.a.outside, APP_PORT).verdict == "captured O8"
    assert case.arrive(APP_PORT).verdict == "captured I10"
    assert world.enroll().outcome == "unchanged"


class Neighbour(NamedTuple):
    """Another enrolled pod of the node, with a proxy of its own."""

    namespace: Namespace
    proxy: Recorder
    netns_cookie: int
    addresses: dict[int, IPAddress]


@pytest.fixture
def neighbour(world: World) -> Iterator[Neighbour]:
    made = world.topology.namespace("neighbour")
    addresses = {4: ip_address("10.79.0.2"), 6: ip_address("fd79::2")}
    with world.node.netlink() as link:
        link.veth("neighbour", made, "eth0")
        link.address("neighbour", "10.79.0.1/24")
        link.address("neighbour", "fd79::1/64")
        link.up("neighbour")
    with made.netlink() as link:
        link.address("eth0", "10.79.0.2/24")
        link.address("eth0", "fd79::2/64")
        link.up("eth0")
        link.route("10.77.0.0/16", dev="eth0", via="10.79.0.1")
        link.route("fd77::/16", dev="eth0", via="fd79::1")
    for space, subnet in ((world.outside, 2), (world.pod, 1)):
        with space.netlink() as link:
            link.route("10.79.0.0/24", dev="eth0", via=f"10.77.{subnet}.1")
            link.route("fd79::/64", dev="eth0", via=f"fd77:{subnet}::1")
    with Recorder("neighbour", made, world.cgroup) as proxy:
        record = world.capture.enroll(
            made.path,
            name="t/neighbour",
            node_id=NODE_ID,
            options=EnrolOptions(backend=world.backend),
        ).record
        proxy.listen_as_proxy()
        yield Neighbour(made, proxy, record.netns_cookie, addresses)
    if world.capture.record(record.netns_cookie) is not None:
        world.capture.unenroll(record.netns_cookie)
    world.topology.namespaces.pop("neighbour", None)
    remove_namespace(made.name)
    for space in (world.outside, world.pod):
        for version, network in ((4, "10.79.0.0/24"), (6, "fd79::/64")):
            space.run("ip", f"-{version}", "route", "del", network)


@parity("X3", rules=("O2", "O6", "O8", "I10"))
def test_options_are_those_of_one_pod(case: Case, neighbour: Neighbour) -> None:
    world, a = case.world, case.a
    own = neighbour.addresses[case.family.version]
    choices: tuple[dict[str, Any], ...] = (
        {"exclude_ports": parse_excluded_ports([str(APP_PORT)])},
        {"direction": "in"},
        {"mode": "ingress"},
        {"dns": True},
    )
    for options in choices:
        world.enroll(**options)
        assert dial(neighbour.namespace, a.outside, APP_PORT).by == "neighbour", options
        assert dial(world.outside, own, APP_PORT).by == "neighbour", options
    world.unenroll()
    assert dial(neighbour.namespace, a.outside, APP_PORT).by == "neighbour"


@parity("P7", "P13", rules=("O8", "I10"))
def test_a_pod_of_the_same_node_is_captured_on_both_sides(case: Case, neighbour: Neighbour) -> None:
    world = case.world
    own = neighbour.addresses[case.family.version]
    # outbound by its own proxy; what that one dials arrives like anything from outside
    assert dial(neighbour.namespace, case.a.pod, APP_PORT).by == "neighbour"
    _local, greeting = world.proxy.dial(own, APP_PORT, mark=MARK)
    assert (greeting.by, greeting.listener) == ("neighbour", INBOUND_PORT)
    assert greeting.peer[0] == case.a.pod


@parity("P27", rules=("O2",))
def test_a_namespace_that_disappears(case: Case, neighbour: Neighbour) -> None:
    world = case.world
    capture = world.capture
    own = neighbour.addresses[case.family.version]
    key = lip_key(neighbour.netns_cookie, own)
    assert capture.maps["lips"].lookup(key) is not None
    remove_namespace(world.topology.namespaces.pop("neighbour").name)
    assert capture.reap() == []  # the name has gone, a process is still in it
    neighbour.proxy.close()
    assert [r.name for r in capture.reap()] == ["t/neighbour"]
    assert capture.record(neighbour.netns_cookie) is None
    assert capture.maps["lips"].lookup(key) is None
    assert capture.maps["pods"].lookup(netns_key(neighbour.netns_cookie)) is None
    pins = capture.instance.links / "sk_lookup"
    assert [p.name for p in pins.iterdir()] == ([str(world.netns_cookie)] if case.ebpf else [])
    assert case.connect(case.a.outside, APP_PORT).verdict == "captured O8"


@parity("P32", rules=("O8", "I10"))
def test_the_backend_can_be_changed(case: Case) -> None:
    world = case.world
    other = "iptables" if case.ebpf else "ebpf"
    record = world.enroll(backend=other).record
    assert record.backend == other
    assert verify(world.capture.instance, world.capture.maps, record).ok
    for backend in (other, world.backend):
        assert world.enroll(backend=backend).record.backend == backend
        assert case.connect(case.a.outside, APP_PORT).verdict == "captured O8"
        seen = case.arrive(APP_PORT)
        assert seen.verdict == "captured I10"
        netfilter = seen.greeting.original is not None
        assert netfilter == (backend == "iptables")
    if case.ebpf:
        with NetNs.open(world.pod.path) as ns:
            assert count_rules(ns) == 0
