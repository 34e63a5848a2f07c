"""The capture against faults: killed anywhere, started again, other pins, full maps, dead pods."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nodenet import abi
from nodenet.capture import programs
from nodenet.capture.errors import AlreadyEnrolled, NotLoaded
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import ExcludedPort, read_records
from nodenet.capture.session import Capture, agent_cgroup_path, remove_instance
from nodenet.capture.upgrade import open_upgraded
from nodenet.errors import NodenetError, NotFound, UsageError
from nodenet.kernel.cgroups import Cgroup, cgroup2_mount
from nodenet.kernel.links import open_link
from nodenet.kernel.loader import SchemaMismatch
from nodenet.kernel.maps import Map, MapFull
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

StandIn = Callable[[Namespace], "subprocess.Popen[bytes]"]


def connect_from(where: Namespace, host: str, port: int) -> int:
    """connect() from inside a namespace, outside the agent's cgroup; its errno, 0 for success."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with where.entered():
        client = socket.socket(family)
    with client:
        client.settimeout(20)
        return client.connect_ex((host, port))


def closed_events(capture: Capture) -> list[dict[str, int | bytes]]:
    """The slots of the ring of closed connections that have been written."""
    events = [abi.EVENT.unpack(raw) for _, raw in capture.maps["closed"].items()]
    return [event for event in events if event["cookie"]]


def state_of(instance: Instance) -> dict[str, object]:
    """The kernel state of an instance, without what differs from run to run."""
    found: dict[str, object] = {}
    for name in ("pods", "lips", "ports", "cidrs"):
        with Map.open(instance.maps / name) as table:
            found[name] = sorted(table.items())
    found["pods"] = [
        (key, {k: v for k, v in abi.POD.unpack(value).items() if k != "enrolled_ns"})
        for key, value in found["pods"]  # type: ignore[attr-defined]
    ]
    found["links"] = sorted(str(p.relative_to(instance.pins)) for p in instance.pins.rglob("*"))
    found["records"] = [(r.name, r.netns_cookie, r.exclude_ports) for r in read_records(instance)]
    return found


def link_ids(instance: Instance) -> dict[str, tuple[int, int]]:
    """Per pinned root link: (link id, program id)."""
    ids = {}
    for definition in programs.ROOT_PROGRAMS:
        with open_link(instance.links / definition.pin) as link:
            info = link.info()
            ids[definition.name] = (info.id, info.prog_id)
    return ids


def test_a_second_start_adopts_what_is_pinned(capture: Capture, instance: Instance) -> None:
    before = link_ids(instance)
    with Capture.open_or_load(instance):
        assert link_ids(instance) == before


def test_opening_what_is_not_loaded_says_how_to_load_it() -> None:
    with pytest.raises(NotLoaded, match="capture is not loaded: .*; start it: nodenet"):
        Capture.open(Instance("t-never"))


def test_a_pod_is_captured_when_enrolled_and_not_after(
    capture: Capture, pod: Namespace, stand_in: StandIn
) -> None:
    assert connect_from(pod, "10.99.0.2", 80) == errno.ECONNREFUSED  # the outside's own refusal
    capture.enroll(pod.path, name="t/pod")
    stand_in(pod)
    assert connect_from(pod, "10.99.0.2", 80) == 0
    assert connect_from(pod, "fd99::2", 80) == 0
    (record,) = capture.records()
    capture.unenroll(record.netns_cookie)
    assert connect_from(pod, "10.99.0.2", 80) == errno.ECONNREFUSED


def test_listeners_older_than_the_enrolment_are_taken_over(
    capture: Capture, pod: Namespace, stand_in: StandIn
) -> None:
    stand_in(pod)
    result = capture.enroll(pod.path, name="t/pod")
    assert result.listeners == (15001, 15006, 15053, 15008)
    assert connect_from(pod, "10.99.0.2", 80) == 0
    # what the proxy accepts knows where it was going
    wait_until(lambda: len(closed_events(capture)) == 2)
    handed = [event for event in closed_events(capture) if event["local_port"] == 15001]
    (flags,) = (int(e["flags"]) & ~abi.ConnFlag.PEER_FIN for e in handed)
    assert flags == abi.ConnFlag.PROXY | abi.ConnFlag.HANDED
    assert handed[0]["orig_port"] == 80
    assert capture.maps["flows"].count() == 0


def test_a_server_older_than_the_enrolment_is_known_by_name(
    capture: Capture, topology: Topology
) -> None:
    inside, outside = topology.pair()
    group = Cgroup.create(cgroup2_mount() / capture.instance.name / "server")
    code = (
        "import os, socket, sys\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "s = socket.create_server(('', 80))\n"
        "print(1, flush=True)\n"
        "while 1: s.accept()\n"
    )
    argv = [sys.executable, "-c", code, str(group.path / "cgroup.procs")]
    with inside.popen(argv, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"1\n"
            capture.enroll(inside.path, name="t/pod", options=EnrolOptions(direction="out"))
            assert connect_from(outside, "10.99.0.1", 80) == 0
            wait_until(lambda: len(closed_events(capture)) == 1)
            (event,) = closed_events(capture)
            assert event["pid"] == server.pid
        finally:
            server.kill()


def test_a_listener_outside_the_agents_cgroup_is_nobody(capture: Capture, pod: Namespace) -> None:
    with pod.entered():
        squatter = socket.create_server(("::", 15001), family=socket.AF_INET6)
    with squatter:
        assert capture.enroll(pod.path, name="t/pod").listeners == ()
        assert connect_from(pod, "10.99.0.2", 80) == errno.ECONNREFUSED
    (event,) = (abi.AGG_KEY.unpack(key) for key, _ in capture.maps["agg"].items_percpu())
    assert event["reason"] == abi.Reason.PROXY_DOWN


def pods_in(capture: Capture) -> int:
    """Entries of ``pods`` that are pods, not the host."""
    flags = (int(abi.POD.unpack(value)["flags"]) for _, value in capture.maps["pods"].items())
    return sum(1 for f in flags if not f & abi.PodFlag.HOST)


def wait_until(condition: Callable[[], bool], deadline_seconds: float = 30.0) -> None:
    """Returns when the condition holds; fails the test at the deadline."""
    done = threading.Event()
    end = threading.Timer(deadline_seconds, done.set)
    end.start()
    try:
        while not condition():
            assert not done.wait(0.005), "condition did not come true in time"
    finally:
        end.cancel()


def test_the_same_enrolment_again_changes_nothing(capture: Capture, pod: Namespace) -> None:
    first = capture.enroll(pod.path, name="t/pod")
    before = state_of(capture.instance)
    again = capture.enroll(pod.path, name="t/pod")
    assert (first.outcome, again.outcome) == ("enrolled", "unchanged")
    assert state_of(capture.instance) == before


def test_changed_options_replace_the_old_ones(capture: Capture, pod: Namespace) -> None:
    capture.enroll(
        pod.path,
        name="t/pod",
        options=EnrolOptions(exclude_ports=(ExcludedPort("out", 1), ExcludedPort("in", 2))),
    )
    changed = capture.enroll(
        pod.path, name="t/pod", options=EnrolOptions(exclude_ports=(ExcludedPort("in", 2),))
    )
    assert changed.outcome == "changed"
    assert capture.maps["ports"].count() == 1
    capture.enroll(pod.path, name="t/pod")
    assert capture.maps["ports"].count() == 0


def test_one_namespace_has_one_name(capture: Capture, pod: Namespace) -> None:
    capture.enroll(pod.path, name="t/pod")
    with pytest.raises(AlreadyEnrolled, match="is enrolled as t/pod .*; run: nodenet capture"):
        capture.enroll(pod.path, name="t/other")


def test_a_namespace_that_is_not_there_is_named(capture: Capture) -> None:
    with pytest.raises(NotFound, match="/run/netns/nn-none"):
        capture.enroll("/run/netns/nn-none", name="t/none")


def test_the_host_is_never_enrolled(capture: Capture) -> None:
    with pytest.raises(NodenetError, match="its network namespace is the host's"):
        capture.enroll("/proc/self/ns/net", name="pid:1")
    assert pods_in(capture) == 0


def test_two_pods_may_have_one_address(capture: Capture, stand_in: StandIn) -> None:
    with Topology() as one, Topology() as two:
        (first, outside), (second, elsewhere) = one.pair(), two.pair()
        capture.enroll(first.path, name="t/first")
        capture.enroll(second.path, name="t/second")
        stand_in(second)
        # the first pod has no proxy: refused; the second's accepts, though the address is the same
        assert connect_from(outside, "10.99.0.1", 80) == errno.ECONNREFUSED
        assert connect_from(elsewhere, "10.99.0.1", 80) == 0
        assert connect_from(second, "10.99.0.2", 80) == 0
        for record in list(capture.records()):
            capture.unenroll(record.netns_cookie)
        assert capture.maps["lips"].count() == 0


def test_an_address_that_comes_later_is_no_way_in(capture: Capture, topology: Topology) -> None:
    pod, outside = topology.pair()
    capture.enroll(pod.path, name="t/pod")
    with pod.netlink() as link:
        link.address("eth0", "10.99.0.9/24")
    with pod.entered():
        app = socket.create_server(("10.99.0.9", 80))
    with app:
        assert connect_from(outside, "10.99.0.9", 80) == errno.ECONNREFUSED
        assert connect_from(outside, "10.99.0.9", 15001) == errno.ECONNREFUSED


def test_the_agents_cgroup_stays_as_it_was_chosen(instance: Instance) -> None:
    chosen = cgroup2_mount() / instance.name / "elsewhere"
    with Capture.open_or_load(instance, agent_cgroup=chosen) as capture:
        wanted = programs.read_config(capture.maps)
    with Capture.open_or_load(instance) as capture:
        assert programs.read_config(capture.maps) == wanted
        with open_link(instance.links / "getsockopt") as link:
            assert link.info().cgroup_id == Cgroup.open(chosen).id


def test_a_start_killed_while_the_agents_cgroup_changes_is_repaired(instance: Instance) -> None:
    other = Cgroup.create(cgroup2_mount() / instance.name / "other")
    with Capture.open_or_load(instance) as capture:
        programs.write_config(capture.maps, other, 0)
    with Capture.open_or_load(instance):
        with open_link(instance.links / "getsockopt") as link:
            assert link.info().cgroup_id == other.id


def test_a_link_that_was_detached_is_attached_again(capture: Capture, instance: Instance) -> None:
    with open_link(instance.links / "connect4") as link:
        link.detach()
    with Capture.open_or_load(instance):
        with open_link(instance.links / "connect4") as link:
            assert link.info().cgroup_id == Cgroup.open(cgroup2_mount()).id


def test_a_v1_cgroup_cannot_be_the_agents(instance: Instance) -> None:
    v1 = Path("/sys/fs/cgroup/memory")
    if not (v1 / "cgroup.procs").exists():
        pytest.skip("this host has no cgroup v1 hierarchy")
    with pytest.raises(UsageError, match="a cgroup v1 directory; nodenet needs the v2"):
        Capture.open_or_load(instance, agent_cgroup=v1 / "nodenet")


def test_a_full_map_is_named_and_nothing_is_left(capture: Capture, pod: Namespace) -> None:
    table = capture.maps["pods"]
    full = abi.MAPS["pods"].max_entries - table.count()
    keys = b"".join(struct.pack("<Q", (1 << 40) + n) for n in range(full))
    table.update_batch(keys, bytes(abi.POD.size) * full)
    before = state_of(capture.instance)
    with pytest.raises(MapFull, match="pods"):
        capture.enroll(pod.path, name="t/pod")
    after = state_of(capture.instance)
    after.pop("pods")
    before.pop("pods")
    assert after == before
    table.delete_batch(keys)
    assert capture.enroll(pod.path, name="t/pod").outcome == "enrolled"


def test_pins_of_another_schema_are_refused_and_rebuilt_on_request(
    instance: Instance, pod: Namespace
) -> None:
    with Capture.open_or_load(instance) as capture:
        capture.enroll(pod.path, name="t/pod", options=EnrolOptions(dns=True))
        wanted = state_of(instance)
    (instance.maps / "pods").unlink()
    with Map.create(abi.MAPS["pods"]._replace(value=abi.CFG)) as other:
        other.pin(instance.maps / "pods")
    with pytest.raises(SchemaMismatch, match="pinned map pods is of another version") as caught:
        Capture.open_or_load(instance)
    assert "run: nodenet node run --upgrade-pins" in caught.value.line()
    with open_upgraded(instance):
        assert state_of(instance) == wanted


def test_another_schema_in_maps_of_the_same_shape_is_refused(
    capture: Capture, instance: Instance
) -> None:
    config = programs.read_config(capture.maps)
    capture.maps["cfg"].update(bytes(4), abi.CFG.pack(**(config | {"schema": 99})))
    with pytest.raises(SchemaMismatch, match="schema 99; wanted schema"):
        Capture.open_or_load(instance)


def test_everything_can_be_removed_whatever_the_pins_are(instance: Instance) -> None:
    with Capture.open_or_load(instance):
        pass
    (instance.maps / "pods").unlink()
    remove_instance(instance)
    assert not instance.pins.exists()
    assert not instance.run.exists()
    assert not agent_cgroup_path(instance).exists()


def test_an_upgrade_misses_no_connect(
    capture: Capture, instance: Instance, pod: Namespace, stand_in: StandIn
) -> None:
    capture.enroll(pod.path, name="t/pod")
    stand_in(pod)
    before = link_ids(instance)
    stop = threading.Event()
    results: list[int] = []

    def hammer() -> None:
        while not stop.is_set():
            # nobody listens outside: 0 means captured, ECONNREFUSED a connect that was missed
            results.append(connect_from(pod, "10.99.0.2", 81))

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(5):
            agent = programs.read_config(capture.maps)
            capture.maps["cfg"].update(bytes(4), abi.CFG.pack(**(agent | {"build": 1})))
            with Capture.open_or_load(instance):
                pass
        wait_until(lambda: len(results) > 100)
    finally:
        stop.set()
        thread.join()
    after = link_ids(instance)
    root = [p.name for p in programs.ROOT_PROGRAMS if p.attach != "iter"]
    assert {n: after[n][0] for n in root} == {n: before[n][0] for n in root}
    assert all(after[n][1] != before[n][1] for n in root)
    assert set(results) == {0}


def test_statistics_survive_a_restart(
    capture: Capture, instance: Instance, pod: Namespace, stand_in: StandIn
) -> None:
    capture.enroll(pod.path, name="t/pod")
    stand_in(pod)
    for _ in range(7):
        assert connect_from(pod, "10.99.0.2", 80) == 0
    capture.close()
    with Capture.open_or_load(instance) as again:
        opened = sum(
            int(abi.AGG.unpack(raw)["opened"])
            for _, values in again.maps["agg"].items_percpu()
            for raw in values
        )
        assert opened == 7


CHURN = """
import sys
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import ExcludedPort
from nodenet.capture.session import Capture
from nodenet.paths import Instance
options = [EnrolOptions(), EnrolOptions(exclude_ports=(ExcludedPort("out", 9),), dns=True)]
print("ready", flush=True)
turn = 0
while True:
    with Capture.open_or_load(Instance(sys.argv[1])) as capture:
        turn += 1
        result = capture.enroll(sys.argv[2], name="t/pod", options=options[turn % 2])
        if turn % 3 == 0:
            capture.unenroll(result.record.netns_cookie)
        if turn % 7 == 0:
            capture.remove_all()
"""


def test_killed_anywhere_the_next_start_ends_in_the_same_state(
    instance: Instance, pod: Namespace
) -> None:
    with Capture.open_or_load(instance) as capture:
        capture.enroll(pod.path, name="t/pod")
        wanted = state_of(instance)
    rng = random.Random(7)
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", CHURN, instance.id or "", str(pod.path)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == b"ready\n"
            # the moment of the kill is the point of the test, not something waited for
            threading.Event().wait(rng.uniform(0.0, 0.15))
            child.send_signal(signal.SIGKILL)
            child.wait()
        with Capture.open_or_load(instance) as capture:
            capture.enroll(pod.path, name="t/pod")
            assert state_of(instance) == wanted


def test_a_vanished_namespace_takes_its_enrolment_with_it(capture: Capture) -> None:
    with Topology() as made:
        gone = made.pair()[0]
        capture.enroll(
            gone.path, name="t/gone", options=EnrolOptions(exclude_ports=(ExcludedPort("in", 1),))
        )
    assert [r.name for r in capture.reap()] == ["t/gone"]
    assert pods_in(capture) == 0
    for name in ("lips", "ports", "agg"):
        assert capture.maps[name].count() == 0, name
    assert list((capture.instance.links / "sk_lookup").iterdir()) == []
    assert list(capture.records()) == []


def test_a_living_namespace_is_not_reaped(capture: Capture, pod: Namespace) -> None:
    capture.enroll(pod.path, name="t/pod")
    assert capture.reap() == []
    assert pods_in(capture) == 1


def test_a_namespace_without_a_path_lives_while_a_process_does(
    capture: Capture, pod: Namespace
) -> None:
    with pod.popen(["sleep", "60"]) as sleeper:
        try:
            capture.enroll(f"/proc/{sleeper.pid}/ns/net", name="t/pod")
            assert capture.reap() == []
        finally:
            sleeper.kill()
    with NetNs.open(pod.path):
        # the path of the record is gone; the namespace has no process, only its other name
        assert [r.name for r in capture.reap()] == ["t/pod"]


@pytest.mark.timeout(300)
def test_a_thousand_pods_come_and_go_without_a_trace(capture: Capture) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    at_first = (0, 0)
    for turn in range(1000):
        with Topology() as made:
            gone = made.namespace("p")
            with gone.netlink() as link:
                link.up("lo")
                link.address("lo", "10.98.0.1/32")
            capture.enroll(gone.path, name="t/gone", options=EnrolOptions(direction="out"))
        capture.reap()
        if turn == 99:
            at_first = (resident(), descriptors())
    assert pods_in(capture) == 0
    for name in ("lips", "ports", "agg", "lsn"):
        assert capture.maps[name].count() == 0, name
    assert list((capture.instance.links / "sk_lookup").iterdir()) == []
    assert descriptors() <= at_first[1]  # one of another test may have been closed meanwhile
    assert resident() < at_first[0] * 1.1, "memory grows with pods that are gone"
