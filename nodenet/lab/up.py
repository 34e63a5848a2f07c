"""Making a lab.

The intent is on disk before the first object is made, and each process is on record before it
runs. So an `up` that is killed leaves a lab that the next `up` or `down` recognises as half made
and removes.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from nodenet.errors import NodenetError, NotPermitted, NotSupported
from nodenet.kernel.cgroups import Cgroup
from nodenet.kernel.netns import NetNs, named_path
from nodenet.lab import capture_glue, cgroups, mesh, processes
from nodenet.lab.down import leftovers, remove_locked
from nodenet.lab.network import make_network
from nodenet.lab.plan import WORKLOAD_PORT, WORKLOAD_PORTS, LabPlan, Node, Pod
from nodenet.lab.ranges import check_ranges
from nodenet.lab.state import LabDir, LabState, ProcessRecord, Role, StateBroken, state_of
from nodenet.lab.status import problems

if TYPE_CHECKING:
    from nodenet.capture.session import Capture

#: How many steps `up` announces.
STEP_COUNT: Final = 6
#: Seconds a workload has to listen.
WORKLOAD_SECONDS: Final = 10.0
#: Seconds a node's proxy has to listen in a pod, and after how many it is looked whether it lives.
PROXY_SECONDS: Final = 10.0
_FIRST_WAIT_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.01
#: What `lab demo` reads are lines of JSON.
_PROXY_ENVIRON: Final = {"LOG_FORMAT": "json"}


class Steps(Protocol):
    """Where progress goes; `nodenet.cli.progress.Steps` is one."""

    def step(self, name: str) -> AbstractContextManager[object]:
        """One step, for the length of the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpResult:
    """What `up` did."""

    state: LabState
    already: bool
    """It was up as asked; nothing was done."""
    seconds: float


class LabDiffers(NodenetError):
    """A lab of that name is up, but not the one asked for."""


class ProxyNotListening(NodenetError):
    """A pod was enrolled, but its node's proxy does not serve it."""


class WorkloadNotListening(NodenetError):
    """A pod's workload did not start."""


def up(
    plan: LabPlan,
    directory: LabDir,
    steps: Steps,
    *,
    keep_on_error: bool = False,
    notice: Callable[[str], None] = lambda _: None,
) -> UpResult:
    """Makes the lab of this plan, or finds that it is up.

    A half-made lab of that name is removed first. After an error everything made so far is
    removed again, unless ``keep_on_error``. Two at once: the second waits, then finds it up.
    """
    started = time.monotonic()
    if os.geteuid() != 0:
        raise NotPermitted(
            f"lab needs root for namespaces (uid {os.geteuid()})", hint="run with sudo"
        )
    with directory.locked(lambda: notice("waiting for another lab command to finish")):
        state = _standing(plan, directory, notice)
        if state is not None:
            return UpResult(state=state, already=True, seconds=time.monotonic() - started)
        with steps.step("check the host"):
            _check_names(plan)
            _check_ipv6(plan)
            check_ranges(plan)
        state = state_of(plan, now=time.time(), cgroup=cgroups.lab_cgroup(plan.instance))
        directory.write(state)
        maker = _Maker(plan, directory, state)
        try:
            maker.make(steps)
        except BaseException:
            if not keep_on_error:
                remove_locked(directory, maker.state)
            raise
        return UpResult(state=maker.state, already=False, seconds=time.monotonic() - started)


def _standing(plan: LabPlan, directory: LabDir, notice: Callable[[str], None]) -> LabState | None:
    """The state when the lab is up and well; one that is not is removed."""
    try:
        state = directory.read()
    except StateBroken:
        state = None
        if directory.path.exists():
            notice(f"removing lab {plan.lab}: its state cannot be read")
            remove_locked(directory, None)
        return None
    if state is None:
        return None
    wrong = problems(state)
    if wrong:
        notice(f"removing lab {plan.lab} and making it again: {wrong[0]}")
        remove_locked(directory, state)
        return None
    if state.plan() != plan:
        raise LabDiffers(
            f"lab {plan.lab} is up with other settings: {_difference(state, plan)}",
            hint="first: sudo nodenet lab down"
            + ("" if plan.lab == "default" else f" --id {plan.lab}"),
        )
    return state


def _difference(state: LabState, plan: LabPlan) -> str:
    wanted = state_of(plan, now=0, cgroup=None)
    names = ("nodes", "pods", "family", "backend", "net", "enroll", "mesh")
    return ", ".join(
        f"{name} {getattr(state, name)}, asked {getattr(wanted, name)}"
        for name in names
        if getattr(state, name) != getattr(wanted, name)
    )


def _check_names(plan: LabPlan) -> None:
    found = leftovers(plan.lab)
    if found:
        raise LabDiffers(
            f"namespace {found[0]} is there, but no lab {plan.lab} was made",
            hint="remove it: sudo nodenet lab down"
            + ("" if plan.lab == "default" else f" --id {plan.lab}"),
        )


def _check_ipv6(plan: LabPlan) -> None:
    if plan.family.v6 and not Path("/proc/sys/net/ipv6").exists():
        raise NotSupported("ipv6", "a kernel with IPv6 switched on", hint="or use --family 4")


class _Maker:
    """One `up` at work: the plan, and the state as it grows."""

    def __init__(self, plan: LabPlan, directory: LabDir, state: LabState) -> None:
        self._plan = plan
        self._directory = directory
        self.state = state
        self._cgroup = None if state.cgroup is None else Path(state.cgroup)

    def make(self, steps: Steps) -> None:
        plan = self._plan
        with steps.step(f"namespaces: {len(plan.nodes)} nodes, {len(plan.pods)} pods"):
            self._directory.hosts_path.write_text(plan.hosts_file())
            make_network(plan)
        with steps.step("workloads and proxies"):
            # They start while the capture is loaded; the last steps look whether they answer.
            workloads = {pod.name: self._start_workload(pod) for pod in plan.pods}
            proxies = self._start_proxies()
        if proxies:
            self._capture(steps, proxies)
        with steps.step("answers"):
            for pod in plan.pods:
                _await_workload(pod, workloads[pod.name])
            for pod, peer in _talks(plan):
                self._start_client(pod, peer)
        self._write(phase="up")

    def _capture(self, steps: Steps, proxies: Mapping[str, ProcessRecord]) -> None:
        plan = self._plan
        with steps.step(f"capture: {plan.backend}"):
            capture = capture_glue.load(plan)
        with capture, steps.step("enrolment"):
            for pod in plan.pods:
                if pod.enrolled:
                    self._enroll(capture, pod, proxies[pod.node])

    def _start_proxies(self) -> dict[str, ProcessRecord]:
        """A proxy for each node that has an enrolled pod, by the node's name."""
        plan = self._plan
        if plan.mesh:
            mesh.write(plan, self._directory.mesh_path)
        nodes = {pod.node for pod in plan.pods if pod.enrolled}
        return {node.name: self._start_proxy(node) for node in plan.nodes if node.name in nodes}

    def _enroll(self, capture: Capture, pod: Pod, proxy: ProcessRecord) -> None:
        deadline = time.monotonic() + PROXY_SECONDS
        while not capture_glue.enroll(capture, self._plan, pod, wait=_FIRST_WAIT_SECONDS):
            if time.monotonic() >= deadline or not processes.alive(proxy):
                raise _with_output(ProxyNotListening(f"no proxy listens in {pod.full_name}"), proxy)
            time.sleep(_RETRY_SECONDS)

    def _start_workload(self, pod: Pod) -> ProcessRecord:
        argv = ["-m", "nodenet.lab.workload", "serve"]
        argv += ["--pod", pod.full_name, *(f"--port={port}" for port in WORKLOAD_PORTS)]
        root = self._cgroup
        cgroup = None if root is None else Cgroup.create(cgroups.host_cgroup(root, pod)).path
        return self._start("workload", pod, argv, cgroup)

    def _start_client(self, pod: Pod, peer: Pod) -> None:
        address = peer.ip4 if pod.ip4 is not None and peer.ip4 is not None else peer.ip6
        argv = ["-m", "nodenet.lab.workload", "talk", str(address), str(WORKLOAD_PORT)]
        root = self._cgroup
        cgroup = None if root is None else Cgroup.create(cgroups.host_cgroup(root, pod)).path
        self._start("client", pod, argv, cgroup)

    def _start_proxy(self, node: Node) -> ProcessRecord:
        root, directory = self._cgroup, self._directory
        cgroup = None if root is None else Cgroup.create(cgroups.proxy_cgroup(root)).path
        argv = capture_glue.proxy_argv(self._plan, node, directory.mesh_path, directory.ca_path)
        return self._start("proxy", node, argv, cgroup, _PROXY_ENVIRON)

    def _start(
        self,
        role: Role,
        host: Node | Pod,
        argv: list[str],
        cgroup: Path | None,
        environ: Mapping[str, str] | None = None,
    ) -> ProcessRecord:
        return processes.start(
            [sys.executable, *argv],
            role=role,
            host=host.name,
            netns=named_path(host.netns),
            cgroup=cgroup,
            hosts_file=self._directory.hosts_path,
            log=self._directory.logs / f"{host.name}{'-client' if role == 'client' else ''}.log",
            record=self._record,
            environ=environ or {},
        )

    def _record(self, process: ProcessRecord) -> None:
        self._write(processes=(*self.state.processes, process))

    def _write(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        self._directory.write(self.state)


def _talks(plan: LabPlan) -> list[tuple[Pod, Pod]]:
    """Who keeps talking to whom: each enrolled pod to the next pod of another node."""
    pairs = []
    for index, pod in enumerate(plan.pods):
        others = [*plan.pods[index + 1 :], *plan.pods[:index]]
        peer = next((p for p in others if p.node != pod.node), None)
        if pod.enrolled and peer is not None:
            pairs.append((pod, peer))
    return pairs


def _await_workload(pod: Pod, process: ProcessRecord) -> None:
    """Returns when the pod's workload accepts connections on its loopback."""
    family = socket.AF_INET if pod.ip4 is not None else socket.AF_INET6
    target = ("127.0.0.1" if pod.ip4 is not None else "::1", WORKLOAD_PORT)
    deadline = time.monotonic() + WORKLOAD_SECONDS
    with NetNs.named(pod.netns) as ns:
        while True:
            with ns.open_socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(1.0)
                try:
                    probe.connect(target)
                    return
                except OSError as error:
                    if time.monotonic() >= deadline or not processes.alive(process):
                        refused = WorkloadNotListening(
                            f"workload of {pod.full_name} does not listen on port "
                            f"{WORKLOAD_PORT}: {error.strerror or error}"
                        )
                        raise _with_output(refused, process) from error
            # a listener cannot be waited for from outside; Python starts within 50 ms
            time.sleep(_RETRY_SECONDS)


def _with_output(error: NodenetError, process: ProcessRecord) -> NodenetError:
    """The error with the end of the process's output, which is removed with the lab."""
    words = processes.last_words(process)
    said = f"it wrote: {words}" if words else "it wrote nothing"
    return type(error)(f"{error.message}; {said}")
