"""``nodenet node run`` as a process: what it restores, forgets, survives and says."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodenet import abi
from nodenet.abi import PodFlag
from nodenet.capture import pod_maps, programs
from nodenet.capture.lock import instance_lock
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import (
    ExcludedPort,
    PodRecord,
    read_records,
    record_path,
    write_record,
)
from nodenet.capture.session import Capture, remove_instance
from nodenet.kernel.links import open_link
from nodenet.kernel.maps import Map
from nodenet.lab.topology import Namespace, Topology, remove_namespace
from nodenet.paths import Instance
from tests.root.world import random_instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = (sys.executable, "-m", "nodenet.cli.main")
DEADLINE = 30.0
NODE_ID = 3
OPTIONS = EnrolOptions(
    dns=True, exclude_ports=(ExcludedPort("in", 9),), on_proxy_down="open", direction="both"
)


class Agent:
    """The agent as a child; its standard error is in ``log``."""

    def __init__(self, instance: Instance, log: Path, *options: str, **environ: str) -> None:
        self.log = log
        with log.open("xb") as out:
            self.process = subprocess.Popen(
                [*NODENET, "--id", str(instance.id), "node", "run", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONWARNINGS": "error", **environ},
            )

    def text(self) -> str:
        """What it has written."""
        return self.log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits until the log has a match; AssertionError with the log when it ends before."""
        end = time.monotonic() + DEADLINE
        while True:
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.text()):
                return found
            assert not ended, f"the agent ended with {self.process.returncode}: {self.text()}"
            assert time.monotonic() < end, f"no {pattern!r} in: {self.text()}"
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends it and returns its status; twice is no harm."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE)


StartAgent = Callable[..., Agent]


@pytest.fixture
def instance() -> Iterator[Instance]:
    chosen = random_instance()
    yield chosen
    remove_instance(chosen)


@pytest.fixture
def start(instance: Instance, tmp_path: Path) -> Iterator[StartAgent]:
    """Starts an agent and waits until it is ready; all are ended at the end."""
    agents: list[Agent] = []

    def start(*options: str, ready: bool = True, **environ: str) -> Agent:
        agent = Agent(instance, tmp_path / f"agent-{len(agents)}.log", *options, **environ)
        agents.append(agent)
        if ready:
            agent.wait_for("ready: instance")
        return agent

    yield start
    for agent in agents:
        agent.stop(signal.SIGKILL)
    for agent in agents:
        assert "Traceback" not in agent.text(), agent.text()


def lone_pod(topology: Topology, label: str, address: str | None) -> Namespace:
    """A namespace with one address, joined to nothing."""
    made = topology.namespace(label)
    if address is not None:
        give(made, address)
    return made


def give(pod: Namespace, address: str) -> None:
    with pod.netlink() as link:
        link.address("lo", f"{address}/32")


@pytest.fixture
def pods(topology: Topology) -> tuple[Namespace, Namespace]:
    """Two pods with an address each."""
    return lone_pod(topology, "a", "10.98.0.1"), lone_pod(topology, "b", "10.98.0.2")


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def live(instance: Instance) -> set[int]:
    """Cookies of the pods that are captured: live, with an inbound link that is attached."""
    if not (instance.maps / "pods").exists():
        return set()
    with Map.open(instance.maps / "pods") as table:
        entries = list(table.items())
    found = set()
    for key, value in entries:
        cookie = int(abi.NETNS_KEY.unpack(key)["netns_cookie"])
        if int(abi.POD.unpack(value)["flags"]) & PodFlag.LIVE:
            if programs.pod_link_alive(instance, cookie):
                found.add(cookie)
    return found


def records(instance: Instance) -> dict[str, PodRecord]:
    return {r.name: r for r in read_records(instance, on_broken=lambda _: None)}


def enrolled(instance: Instance, *pods: Namespace) -> dict[str, PodRecord]:
    """Enrols pods as t/a, t/b … with options of their own; their records."""
    with Capture.open_or_load(instance) as capture:
        for pod in pods:
            name = f"t/{pod.name[-1]}"
            capture.enroll(
                pod.path, name=name, node="n", node_id=NODE_ID, uid=f"u-{name}", options=OPTIONS
            )
    return records(instance)


def same_but_time(one: PodRecord, other: PodRecord) -> bool:
    return replace(one, enrolled_at="") == replace(other, enrolled_at="")


def kernel_state(instance: Instance) -> object:
    """The ids of all links and maps, and every pod's entry."""
    ids = []
    for pin in sorted(instance.links.rglob("*")):
        if pin.is_file():
            with open_link(pin) as link:
                ids.append((pin.name, link.info().id, link.info().prog_id))
    for pin in sorted(instance.maps.iterdir()):
        with Map.open(pin) as table:
            ids.append((pin.name, table.id, 0))
    with Map.open(instance.maps / "pods") as table:
        return ids, sorted(table.items())


def test_a_second_agent_says_who_runs(start: StartAgent, instance: Instance) -> None:
    first = start()
    second = start(ready=False)
    assert second.process.wait(DEADLINE) == 1
    wanted = f"already running: pid {first.process.pid} holds {instance.run / 'node.lock'}"
    assert wanted in second.text()


def test_sigterm_leaves_the_capture_and_says_so(
    start: StartAgent, instance: Instance, pods: tuple[Namespace, Namespace]
) -> None:
    enrolled(instance, *pods)
    agent = start()
    before = kernel_state(instance)
    assert agent.stop() == 0
    assert "capture stays (pinned), 2 pods; to remove: nodenet capture unenroll" in agent.text()
    assert kernel_state(instance) == before


def test_killed_and_started_again_changes_nothing(
    start: StartAgent, instance: Instance, pods: tuple[Namespace, Namespace]
) -> None:
    enrolled(instance, *pods)
    agent = start()
    before = kernel_state(instance)
    assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
    assert kernel_state(instance) == before
    again = start()
    assert kernel_state(instance) == before
    assert "captured again" not in again.text()


def test_systemd_is_told_when_it_is_ready(
    start: StartAgent, instance: Instance, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(DEADLINE)
        start(ready=False, NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert notified.recv(100) == b"READY=1"
        assert instance.exists()


def test_a_deleted_namespace_is_forgotten(
    start: StartAgent, instance: Instance, topology: Topology, pods: tuple[Namespace, Namespace]
) -> None:
    known = enrolled(instance, *pods)
    agent = start()
    remove_namespace(topology.namespaces.pop("a").name)
    agent.wait_for(f"namespace of t/a is gone: {pods[0].path}")
    assert live(instance) == {known["t/b"].netns_cookie}
    assert list(records(instance)) == ["t/b"]


def test_an_unknown_target_gets_the_defaults_and_a_known_one_keeps_its_options(
    start: StartAgent, instance: Instance, pods: tuple[Namespace, Namespace]
) -> None:
    before = enrolled(instance, pods[0])["t/a"]
    agent = start("--enroll", f"netns:{pods[0].path}", "--enroll", f"netns:{pods[1].path}")
    agent.wait_for("unchanged t/a")
    agent.wait_for(f"enrolled netns:{pods[1].path}")
    found = records(instance)
    assert found["t/a"] == before
    new = found[f"netns:{pods[1].path}"]
    assert EnrolOptions().matches(new, "ebpf")
    assert live(instance) == {before.netns_cookie, new.netns_cookie}


def test_a_target_that_is_not_there_is_named(start: StartAgent) -> None:
    agent = start("--enroll", "netns:/run/netns/nn-none", ready=False)
    assert agent.process.wait(DEADLINE) == 4
    assert "/run/netns/nn-none" in agent.text()


def test_pins_of_another_schema_are_rebuilt_with_all_pods(
    start: StartAgent, instance: Instance, pods: tuple[Namespace, Namespace]
) -> None:
    before = enrolled(instance, *pods)
    (instance.maps / "pods").unlink()
    with Map.create(abi.MAPS["pods"]._replace(value=abi.CFG)) as other:
        other.pin(instance.maps / "pods")
    refused = start(ready=False)
    assert refused.process.wait(DEADLINE) == 1
    assert "run: nodenet node run --upgrade-pins" in refused.text()
    start("--upgrade-pins")
    after = records(instance)
    assert all(same_but_time(before[name], after[name]) for name in before)
    assert live(instance) == {r.netns_cookie for r in before.values()}


@pytest.mark.parametrize("options", [(), ("--upgrade-pins",)])
def test_killed_while_it_rebuilt_the_pins_the_next_start_puts_the_pods_back(
    start: StartAgent,
    instance: Instance,
    pods: tuple[Namespace, Namespace],
    options: tuple[str, ...],
) -> None:
    before = enrolled(instance, *pods)
    programs.remove_pins(instance)  # the records stay: this is where it was killed
    agent = start(*options)
    after = records(instance)
    assert all(same_but_time(before[name], after[name]) for name in before)
    assert live(instance) == {r.netns_cookie for r in before.values()}
    with Map.open(instance.maps / "lips") as table:
        nodes = {int(abi.LIP.unpack(value)["node_id"]) for _, value in table.items()}
    assert nodes == {NODE_ID}
    assert "is not captured" not in agent.text()


def test_one_pod_that_cannot_be_restored_does_not_stop_the_others(
    start: StartAgent, instance: Instance, pods: tuple[Namespace, Namespace]
) -> None:
    known = enrolled(instance, *pods)
    programs.remove_pins(instance)
    pods[0].run("ip", "addr", "del", "10.98.0.1/32", "dev", "lo")
    agent = start()
    agent.wait_for("t/a is not captured: cannot enroll t/a: .* has no address")
    assert live(instance) == {known["t/b"].netns_cookie}
    give(pods[0], "10.98.0.1")
    agent.wait_for("captured again: t/a")
    assert live(instance) == {r.netns_cookie for r in known.values()}
    assert agent.text().count("t/a is not captured") == 1


def test_an_enrolment_that_was_killed_is_finished(
    start: StartAgent, instance: Instance, pods: tuple[Namespace, Namespace]
) -> None:
    known = enrolled(instance, *pods)
    agent = start()
    write_record(instance, replace(known["t/a"], pending=True))
    with Map.open(instance.maps / "pods") as table:
        table.delete(pod_maps.netns_key(known["t/b"].netns_cookie))
    agent.wait_for("captured again: t/a")
    agent.wait_for("captured again: t/b")
    assert live(instance) == {r.netns_cookie for r in known.values()}
    assert not any(r.pending for r in records(instance).values())


def test_pins_that_vanish_under_it_are_made_again(
    start: StartAgent, instance: Instance, pods: tuple[Namespace, Namespace]
) -> None:
    known = enrolled(instance, *pods)
    agent = start()
    with instance_lock(instance):
        programs.remove_pins(instance)
    agent.wait_for("captured again: t/b")
    assert live(instance) == {r.netns_cookie for r in known.values()}


def test_a_removed_instance_stays_removed_until_somebody_enrols(
    start: StartAgent, instance: Instance, topology: Topology, pods: tuple[Namespace, Namespace]
) -> None:
    enrolled(instance, *pods)
    agent = start()
    command = [*NODENET, "--id", str(instance.id), "capture", "unenroll", "--all"]
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE)
    agent.wait_for(f"instance {instance.name} was removed; waiting")
    assert not instance.exists()
    known = enrolled(instance, *pods)
    agent.wait_for("was loaded anew")
    # it looks after the new maps, not the old ones
    remove_namespace(topology.namespaces.pop("a").name)
    agent.wait_for("namespace of t/a is gone")
    assert live(instance) == {known["t/b"].netns_cookie}


def test_ended_after_a_removal_it_says_that_nothing_is_captured(
    start: StartAgent, instance: Instance
) -> None:
    agent = start()
    remove_instance(instance)
    agent.wait_for("waiting for an enrolment")
    assert agent.stop() == 0
    assert f"nothing is captured: instance {instance.name} was removed" in agent.text()
    assert not instance.exists()


def test_a_broken_record_stops_nothing(
    start: StartAgent, instance: Instance, topology: Topology, pods: tuple[Namespace, Namespace]
) -> None:
    third = lone_pod(topology, "c", "10.98.0.3")
    known = enrolled(instance, *pods, third)
    broken = record_path(instance, known["t/c"].netns_cookie)
    broken.write_text("{")
    with Map.open(instance.maps / "pods") as table:
        table.delete(pod_maps.netns_key(known["t/b"].netns_cookie))
    agent = start()
    agent.wait_for(f"enrolment record cannot be read: {broken}")
    agent.wait_for("captured again: t/b")
    remove_namespace(topology.namespaces.pop("a").name)
    agent.wait_for("namespace of t/a is gone")
    # what the broken one is about stays captured
    assert live(instance) == {known[n].netns_cookie for n in ("t/b", "t/c")}
    assert agent.text().count("cannot be read") == 1
    assert agent.stop() == 0
    assert "capture stays (pinned), 1 pods" in agent.text()


def test_a_busy_instance_is_looked_at_later(
    start: StartAgent, instance: Instance, topology: Topology, pods: tuple[Namespace, Namespace]
) -> None:
    enrolled(instance, *pods)
    agent = start()
    with instance_lock(instance):
        remove_namespace(topology.namespaces.pop("a").name)
        agent.wait_for(f"instance {instance.name} is being changed by pid {os.getpid()}")
    agent.wait_for("namespace of t/a is gone")
    wait_until(lambda: list(records(instance)) == ["t/b"])
