"""TARGETs that are named by processes: pid, cgroup, unit, container."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.records import PodRecord
from nodenet.capture.targets import resolve_target
from nodenet.errors import NotFound, UsageError
from nodenet.kernel import netns
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace, Topology

pytestmark = [pytest.mark.root]


class Processes:
    """Sleepers in namespaces and cgroups of one test."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._groups: set[Cgroup] = set()

    def start(self, where: Namespace, group: Cgroup | None = None) -> int:
        with where.entered():
            child = subprocess.Popen(["sleep", "100"])
        self._children.append(child)
        if group is not None:
            group.add_pid(child.pid)
        return child.pid

    def group(self, path: str) -> Cgroup:
        made = Cgroup.create(Path(path))
        self._groups.add(Cgroup(made.mount / Path(path).parts[0], made.mount))
        return made

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()
        for group in self._groups:
            group.remove()


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.end()


@pytest.fixture
def unique() -> str:
    return f"nodenet-{secrets.token_hex(4)}"


def enrolment(where: Namespace, name: str = "shop/cart") -> PodRecord:
    with NetNs.open(where.path) as ns:
        return PodRecord(
            name=name,
            netns=str(where.path),
            netns_inode=ns.inode,
            netns_cookie=ns.cookie(),
            pod_id=1,
            ips=(),
            backend="ebpf",
            enrolled_at="",
        )


def test_a_process_in_a_named_namespace_leads_to_the_name(
    pod: Namespace, processes: Processes
) -> None:
    text = f"pid:{processes.start(pod)}"
    found = resolve_target(text, [])
    assert (found.name, found.netns_path, found.record) == (text, pod.path, None)


def test_a_namespace_without_a_name_is_named_by_its_process() -> None:
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec sleep 100"], stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            found = resolve_target(f"pid:{child.pid}", [])
            assert found.netns_path == Path(f"/proc/{child.pid}/ns/net")
        finally:
            child.kill()


def test_whatever_names_an_enrolled_namespace_finds_its_enrolment(
    pod: Namespace, topology: Topology, processes: Processes
) -> None:
    record, other = enrolment(pod), enrolment(topology.namespaces["r"], "shop/db")
    for text in (f"pid:{processes.start(pod)}", f"netns:{pod.path}"):
        found = resolve_target(text, [other, record])
        assert (found.name, found.record) == ("shop/cart", record)


def test_an_inode_used_again_is_not_taken_for_the_old_pod(pod: Namespace) -> None:
    now = enrolment(pod)
    old = PodRecord(**{f: getattr(now, f) for f in now.__struct_fields__} | {"netns_cookie": 1})
    assert resolve_target(f"netns:{pod.path}", [old]).record is None


def test_an_enrolment_can_be_named_after_its_process_has_ended(
    pod: Namespace, processes: Processes
) -> None:
    pid = processes.start(pod)
    record = enrolment(pod, f"pid:{pid}")
    assert resolve_target(f"pid:{pid}", [record]).record == record
    gone = enrolment(pod, "pid:4194305")
    assert resolve_target("pid:4194305", [gone]).record == gone


def test_a_cgroup_by_either_path_and_with_what_is_below(
    pod: Namespace, processes: Processes, unique: str
) -> None:
    group = processes.group(unique)
    with pytest.raises(NotFound, match=f"cgroup /{unique}: no processes in it"):
        resolve_target(f"cgroup:/{unique}", [])
    processes.start(pod, processes.group(f"{unique}/below"))
    for path in (group.path, group.name, unique):
        assert resolve_target(f"cgroup:{path}", []).netns_path == pod.path


def test_processes_of_a_cgroup_must_agree(
    pod: Namespace, topology: Topology, processes: Processes, unique: str
) -> None:
    group = processes.group(unique)
    first = processes.start(pod, group)
    second = processes.start(topology.namespaces["r"], group)
    with pytest.raises(UsageError) as raised:
        resolve_target(f"cgroup:{unique}", [])
    line = raised.value.line()
    assert "its processes are in 2 network namespaces" in line
    assert f"pid {first} in" in line and f"pid {second} in" in line


def test_a_unit_is_its_cgroup_wherever_it_is(
    pod: Namespace, processes: Processes, unique: str
) -> None:
    # the layout systemd makes, here without systemd: an instance in a slice of its template
    processes.start(pod, processes.group(f"{unique}/system-web.slice/{unique}@1.service"))
    assert resolve_target(f"unit:{unique}@1.service", []).netns_path == pod.path
    assert resolve_target(f"unit:{unique}@1", []).netns_path == pod.path
    with pytest.raises(NotFound, match=f"unit {unique}@2.service: no cgroup of that name"):
        resolve_target(f"unit:{unique}@2", [])


def test_a_container_by_the_start_of_its_id(
    pod: Namespace, topology: Topology, processes: Processes, unique: str
) -> None:
    one, two = secrets.token_hex(32), secrets.token_hex(32)
    processes.start(pod, processes.group(f"{unique}/cri-containerd-{one}.scope"))
    processes.start(topology.namespaces["r"], processes.group(f"{unique}/{two}"))
    for text in (one, one[:12], f"containerd://{one}"):
        assert resolve_target(f"container:{text}", []).netns_path == pod.path
    assert resolve_target(f"container:{two[:12]}", []).netns_path != pod.path
    with pytest.raises(NotFound, match="no process of it"):
        resolve_target(f"container:{one[:4]}", [])


def test_an_ambiguous_container_lists_the_ids(
    pod: Namespace, processes: Processes, unique: str
) -> None:
    start = secrets.token_hex(6)
    ids = sorted(start + secrets.token_hex(26) for _ in range(2))
    for identity in ids:
        processes.start(pod, processes.group(f"{unique}/docker-{identity}.scope"))
    with pytest.raises(UsageError) as raised:
        resolve_target(f"container:{start}", [])
    assert raised.value.line() == f"container {start} is ambiguous; one of: {ids[0]} {ids[1]}"


def test_a_file_left_in_run_netns_is_not_a_namespace() -> None:
    name = f"nn-{secrets.token_hex(4)}"
    netns.create(name).close()
    path = netns.named_path(name)
    netns.delete(name)
    path.touch()
    try:
        with pytest.raises(netns.NotANetNs):
            resolve_target(f"netns:{path}", [])
    finally:
        path.unlink()
