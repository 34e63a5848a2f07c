"""The mesh of a lab, as the file that its proxies read.

Every enrolled pod is a workload of its own identity, reached by HBONE; the others are workloads
reached by plain TCP. One policy keeps the guarded port for one pod: it asks for who is calling, so
it refuses the other pods of the mesh and everybody who has no identity.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from nodenet.lab.plan import (
    GUARDED_PORT,
    POD_NAMESPACE,
    SERVICE_NAME,
    SERVICE_PORT,
    WORKLOAD_PORT,
    LabPlan,
    Pod,
    VirtualService,
)

TRUST_DOMAIN: Final = "cluster.local"
_HEAD: Final = """\
# The mesh of lab {lab}: made by `nodenet lab up`, gone with `nodenet lab down`.
# Its proxies watch this file. What is changed here is in force at once.
"""


def identity(pod: Pod) -> str:
    """The SPIFFE id of a pod of the mesh: its service account has its name."""
    return f"spiffe://{TRUST_DOMAIN}/ns/{POD_NAMESPACE}/sa/{pod.name}"


def policy_name(plan: LabPlan) -> str | None:
    """``lab/only-a1``: namespace and name of the policy; None: there is none."""
    return None if plan.privileged is None else f"{POD_NAMESPACE}/{_policy(plan.privileged)}"


def mesh_file(plan: LabPlan) -> str:
    """The text of the static mesh file."""
    import yaml

    service, privileged = plan.service, plan.privileged
    document = {
        "workloads": [_workload(plan, pod, service) for pod in plan.pods],
        "services": [] if service is None else [_service(service)],
        "policies": [] if privileged is None else [_guard(privileged)],
    }
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)
    return _HEAD.format(lab=plan.lab) + text


def write(plan: LabPlan, path: Path) -> None:
    """Puts the mesh file there, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(mesh_file(plan))
    os.replace(new, path)


def _workload(plan: LabPlan, pod: Pod, service: VirtualService | None) -> dict[str, object]:
    found: dict[str, object] = {
        "name": pod.name,
        "namespace": POD_NAMESPACE,
        "serviceAccount": pod.name,
        "workloadName": pod.name,
        "canonicalName": pod.name,
        "node": pod.node,
        "protocol": "HBONE" if pod in plan.members else "TCP",
        "workloadIps": [str(a) for a in pod.addresses],
    }
    if service is not None and pod in service.endpoints:
        found["services"] = {service.full_name: {SERVICE_PORT: WORKLOAD_PORT}}
    return found


def _service(service: VirtualService) -> dict[str, object]:
    return {
        "name": SERVICE_NAME,
        "namespace": POD_NAMESPACE,
        "hostname": service.name,
        "vips": [f"/{a}" for a in service.addresses],
        "ports": {SERVICE_PORT: WORKLOAD_PORT},
    }


def _policy(privileged: Pod) -> str:
    return f"only-{privileged.name}"


def _guard(privileged: Pod) -> dict[str, object]:
    principal = identity(privileged).removeprefix("spiffe://")
    match = {"destinationPorts": [GUARDED_PORT], "notPrincipals": [{"Exact": principal}]}
    return {
        "name": _policy(privileged),
        "namespace": POD_NAMESPACE,
        "scope": "Namespace",
        "action": "Deny",
        "rules": [[[match]]],
    }
