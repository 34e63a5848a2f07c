"""What a person asks the demo for: ``--pairs a1:b2,a1:a2:8081,a1:web.lab``."""

from __future__ import annotations

from collections.abc import Sequence

from nodenet.errors import NotFound, UsageError
from nodenet.lab.flows import Chosen
from nodenet.lab.plan import (
    SERVICE_PORT,
    WORKLOAD_PORT,
    WORKLOAD_PORTS,
    LabPlan,
    Pod,
    VirtualService,
)


def parse_pairs(plan: LabPlan, texts: Sequence[str]) -> list[Chosen]:
    """``SOURCE:TARGET`` or ``SOURCE:TARGET:PORT``, or several with commas.

    UsageError for what is no pair of different ends, NotFound for a name that is not there.
    """
    return [_pair(plan, part) for given in texts for part in given.split(",")]


def _pair(plan: LabPlan, text: str) -> Chosen:
    names = text.split(":")
    if len(names) not in (2, 3) or names[0] == names[1]:
        raise UsageError(f"--pairs {text}: not a pair of pods", hint="write e.g. a1:b2")
    source, target = _pod(plan, names[0]), _service(plan, names[1]) or _pod(plan, names[1])
    known: tuple[int, ...] = WORKLOAD_PORTS
    port = WORKLOAD_PORT
    if isinstance(target, VirtualService):
        if source not in plan.members:
            callers = " ".join(pod.name for pod in plan.members)
            raise UsageError(
                f"--pairs {text}: nothing routes from {source.name} to {target.name}",
                hint=f"it is there for: {callers}",
            )
        known, port = (SERVICE_PORT,), SERVICE_PORT
    if len(names) == 3:
        if names[2] not in map(str, known):
            listed = " ".join(map(str, known))
            raise UsageError(f"--pairs {text}: no port of {names[1]}", hint=f"it has: {listed}")
        port = int(names[2])
    return source, target, port


def _pod(plan: LabPlan, name: str) -> Pod:
    found = plan.pod(name)
    if found is None:
        known = " ".join(p.name for p in plan.pods)
        raise NotFound(f"no pod {name} in lab {plan.lab}", hint=f"it has: {known}")
    return found


def _service(plan: LabPlan, name: str) -> VirtualService | None:
    service = plan.service
    return service if service is not None and name in (service.name, service.full_name) else None
