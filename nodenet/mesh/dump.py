"""The mesh part of ``/config_dump``: what istioctl's ``ztunnel-config`` and people read.

Source of the shapes: istio: istioctl/pkg/writer/ztunnel/configdump. A large mesh is written in
pieces, because its text is several times what the state itself takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from nodenet.mesh.policy_json import policy_to_object
from nodenet.mesh.service_json import (
    endpoints_to_object,
    service_to_object,
    static_service_to_object,
)
from nodenet.mesh.state import MeshState
from nodenet.mesh.static_file import StaticMesh
from nodenet.mesh.workload_json import static_workload_to_object, workload_to_object

_NOTHING: Final = StaticMesh()
_INDENT: Final = 2


def workloads(state: MeshState) -> Iterator[dict[str, Any]]:
    """Every workload, one at a time."""
    return map(workload_to_object, state.workloads)


def services(state: MeshState) -> Iterator[dict[str, Any]]:
    """Every service with the endpoints that may have connections."""
    for service in state.services:
        yield service_to_object(service, state.endpoints(service).values())


def policies(state: MeshState) -> Iterator[dict[str, Any]]:
    """Every policy."""
    return map(policy_to_object, state.policies)


def staged_services(state: MeshState) -> dict[str, Any]:
    """Endpoints whose service is not known, by its key."""
    return {key: endpoints_to_object(found.values()) for key, found in state.staged().items()}


def static_config(static: StaticMesh | None) -> dict[str, Any]:
    """What came from a file, in the form of the file."""
    static = static or _NOTHING
    return {
        "workloads": [static_workload_to_object(each) for each in static.workloads],
        "policies": [policy_to_object(each) for each in static.policies],
        "services": [static_service_to_object(each) for each in static.services],
    }


def mesh(state: MeshState, static: StaticMesh | None = None) -> dict[str, Any]:
    """The mesh keys of a dump as one object; for states that are not large."""
    return {
        "workloads": list(workloads(state)),
        "services": list(services(state)),
        "policies": list(policies(state)),
        "stagedServices": staged_services(state),
        "staticConfig": static_config(static),
    }


def written(
    state: MeshState,
    static: StaticMesh | None = None,
    rest: Mapping[str, object] | None = None,
) -> Iterator[bytes]:
    """A whole dump as indented JSON, in pieces of one resource each.

    ``rest`` are the keys after those of the mesh: ``version``, ``config``, ``certificates``,
    ``workloadState``.
    """
    yield b"{\n"
    yield from _list("workloads", workloads(state))
    yield from _list("services", services(state))
    yield from _list("policies", policies(state))
    others: dict[str, object] = {
        "stagedServices": staged_services(state),
        "staticConfig": static_config(static),
        **(rest or {}),
    }
    before = b""
    for key, value in others.items():
        yield before + _key(key) + _indented(value, 1)
        before = b",\n"
    yield b"\n}\n"


def _list(key: str, items: Iterable[object]) -> Iterator[bytes]:
    yield _key(key) + b"["
    before = b"\n"
    for item in items:
        yield before + b" " * 2 * _INDENT + _indented(item, 2)
        before = b",\n"
    yield b"],\n" if before == b"\n" else b"\n" + b" " * _INDENT + b"],\n"


def _key(key: str) -> bytes:
    return b" " * _INDENT + msgspec.json.encode(key) + b": "


def _indented(value: object, level: int) -> bytes:
    """JSON whose lines after the first are indented by a level more than their own."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=_INDENT)
    return text.replace(b"\n", b"\n" + b" " * _INDENT * level)
