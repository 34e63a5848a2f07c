"""How a lab is doing."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from nodenet.errors import NotFound
from nodenet.kernel.netns import NetNs, NotANetNs
from nodenet.lab import capture_glue, mesh, processes
from nodenet.lab.plan import WORKLOAD_PORT, Host
from nodenet.lab.state import LabDir, LabState, Phase, ProcessRecord


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One pod; the JSON item of ``lab status``."""

    pod: str
    node: str
    ipv4: str | None
    ipv6: str | None
    netns: str
    netns_cookie: str | None
    """None: the namespace is gone."""
    enrolled: Literal["ebpf", "iptables"] | None
    identity: str | None
    """SPIFFE id in the lab's mesh; None: not a member."""
    workload: str
    """``http:8080``."""
    workload_pid: int | None
    """None: it does not run."""
    up_s: float


class LabStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``lab status``."""

    ok: bool
    lab: str
    id: str
    state: Phase
    net: str
    backend: str
    mesh: bool
    """Whether there is HBONE between the enrolled pods."""
    problems: tuple[str, ...]
    """What is not as `lab up` left it, one sentence each."""
    pods: tuple[PodStatus, ...]


def problems(state: LabState) -> list[str]:
    """What is missing of a lab that should be up; empty when it is well."""
    if state.phase != "up":
        return [f"it is half made (state {state.phase})"]
    found = [f"namespace {name} is gone" for name in state.namespaces if _cookie_of(name) is None]
    found += [
        f"{process.role} of {process.host} (pid {process.pid}) ended, see {process.log}"
        for process in state.processes
        if not processes.alive(process)
    ]
    if state.backend == "ebpf" and state.enroll and not state.instance.exists():
        found.append(f"the capture is not loaded: no {state.instance.maps}")
    return found


def status(directory: LabDir, *, now: float | None = None) -> LabStatus:
    """The lab's state; LabNotUp when there is none. ``now`` is Unix time in seconds."""
    state = directory.require()
    moment = time.time() if now is None else now
    wrong = problems(state)
    plan = state.plan()
    enrolled = capture_glue.enrolments(plan)
    workloads = {p.host: p for p in state.processes if p.role == "workload"}
    pods = []
    for pod in plan.pods:
        cookie = _cookie_of(pod.netns)
        record = enrolled.get(pod.full_name)
        pods.append(
            PodStatus(
                pod=pod.full_name,
                node=pod.node,
                ipv4=_text(pod, 4),
                ipv6=_text(pod, 6),
                netns=pod.netns,
                netns_cookie=None if cookie is None else str(cookie),
                enrolled=record.backend if record else None,
                identity=mesh.identity(pod) if pod in plan.members else None,
                workload=f"http:{WORKLOAD_PORT}",
                workload_pid=_pid(workloads.get(pod.name)),
                up_s=round(max(0.0, moment - state.made_at), 3),
            )
        )
    return LabStatus(
        ok=not wrong,
        lab=state.lab,
        id=state.instance_id,
        state=state.phase,
        net=state.net,
        backend=state.backend,
        mesh=state.mesh,
        problems=tuple(wrong),
        pods=tuple(pods),
    )


def _cookie_of(name: str) -> int | None:
    try:
        with NetNs.named(name) as ns:
            return ns.cookie()
    except (NotFound, NotANetNs):
        return None


def _pid(process: ProcessRecord | None) -> int | None:
    return process.pid if process is not None and processes.alive(process) else None


def _text(host: Host, family: Literal[4, 6]) -> str | None:
    address = host.ip4 if family == 4 else host.ip6
    return None if address is None else str(address)
