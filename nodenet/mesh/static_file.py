"""The mesh from a file: workloads, services and policies in YAML, as ztunnel's local file has them.

::

    workloads:
    - name: web
      namespace: shop
      workloadIps: [10.0.0.1]
      protocol: HBONE
      services: {shop/web.shop.svc.cluster.local: {80: 8080}}
    services:
    - name: web
      namespace: shop
      hostname: web.shop.svc.cluster.local
      vips: [/10.96.0.1]
      ports: {80: 8080}
    policies: []

Nothing is guessed: an unknown key, a wrong value or a name that is there twice refuses the file,
with the file's line and the key's path. Source: ztunnel: src/state/workload.rs,
examples/localhost.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final, TypeVar

import msgspec

from nodenet.errors import NodenetError
from nodenet.mesh import reading, yaml_text
from nodenet.mesh.model import NamespacedHostname, Ports, Service, Workload
from nodenet.mesh.policy import InvalidPart, Path, Policy, PolicyRefused, format_path
from nodenet.mesh.policy_json import policy_from_object
from nodenet.mesh.service_json import ReadService, endpoints_from_object, service_from_object
from nodenet.mesh.workload_json import with_ports, workload_from_object
from nodenet.mesh.yaml_text import YamlFault

#: A larger file is a mistake, or a mesh that needs a control plane.
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_KEYS: Final = ("workloads", "services", "policies")

R = TypeVar("R")
Resource = Workload | Service | Policy


class MeshFileError(NodenetError):
    """A mesh file cannot be used. ``file`` is its name, ``line`` counts from 1, None: unknown.

    ``path`` is where in the document the fault is, ``reason`` what is wrong there.
    """

    exit_code = 2

    def __init__(self, file: str, reason: str, *, line: int | None = None, path: Path = ()) -> None:
        place = file if line is None else f"{file}:{line}"
        where = f"{format_path(path)}: " if path else ""
        super().__init__(f"{place}: {where}{reason}")
        self.file = file
        self.line_number = line
        self.path = path
        self.reason = reason


class MeshFileMissing(MeshFileError):
    """The file is not there, or may not be read."""

    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMesh:
    """What a file says."""

    workloads: tuple[Workload, ...] = ()
    services: tuple[Service, ...] = ()
    policies: tuple[Policy, ...] = ()

    @property
    def resources(self) -> tuple[Resource, ...]:
        """All of it, for `nodenet.mesh.state.Batch`."""
        return (*self.services, *self.policies, *self.workloads)

    def notices(self) -> Iterator[str]:
        """References to what the file does not have: allowed, as others may know it, but odd."""
        services = {each.key for each in self.services}
        policies = {each.key for each in self.policies}
        hostnames = {f"{each.namespace}/{each.hostname}" for each in self.workloads}
        for workload in self.workloads:
            for membership in workload.services:
                if membership.service not in services:
                    yield f"workload {workload.uid}: no service {membership.service} in this file"
            for key in workload.authorization_policies:
                if key not in policies:
                    yield f"workload {workload.uid}: no policy {key} in this file"
        waypoints = [(f"workload {each.uid}", each.waypoint) for each in self.workloads]
        waypoints += [(f"service {each.key}", each.waypoint) for each in self.services]
        for who, waypoint in waypoints:
            if waypoint is not None and isinstance(waypoint.destination, NamespacedHostname):
                key = str(waypoint.destination)
                if key not in services and key not in hostnames:
                    yield f"{who}: no waypoint {key} in this file"


def load(file: str | FilePath) -> StaticMesh:
    """Reads a mesh file. MeshFileError says what is wrong with it, and where."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower().removesuffix(" or directory")
        raise MeshFileMissing(f"mesh file {file}", reason) from error
    except ValueError as error:  # a NUL in the name
        raise MeshFileMissing(repr(file), str(error)) from error
    return parse(data, file=str(file))


def parse(data: bytes | str, *, file: str = "mesh") -> StaticMesh:
    """Reads the text of a mesh file. ``file`` is named in errors: ``LOCAL_XDS`` for inline YAML."""
    if len(data) > MAX_FILE_BYTES:
        raise MeshFileError(file, f"larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise MeshFileError(file, "not UTF-8", line=line) from error
    try:
        document = yaml_text.parse(text)
    except YamlFault as fault:
        raise MeshFileError(file, fault.reason, line=fault.line) from fault
    try:
        return _mesh(document, closed=True)
    except InvalidPart as fault:
        line = yaml_text.line_of(text, fault.path)
        reason = fault.reason
        if isinstance(fault, _Twice):
            reason += f", first in line {yaml_text.line_of(text, fault.first)}"
        raise MeshFileError(file, reason, line=line, path=fault.path) from fault


def from_dump(data: bytes | str, *, file: str = "dump") -> StaticMesh:
    """The mesh of a ``/config_dump`` (JSON). What else the dump holds is passed over.

    Ports that an endpoint maps itself are lost for endpoints that the dump does not list, the
    unhealthy ones.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise MeshFileError(file, f"not JSON: {error}") from error
    try:
        return _mesh(document, closed=False)
    except InvalidPart as fault:
        raise MeshFileError(file, fault.reason, path=fault.path) from fault


class _Twice(InvalidPart):
    """A resource whose key another one has; ``first`` is the path of that one."""

    def __init__(self, reason: str, path: Path, first: Path) -> None:
        super().__init__(reason, path)
        self.first = first


def _mesh(document: object, *, closed: bool) -> StaticMesh:
    """``closed``: other keys than the three are faults."""
    top = reading.mapping({} if document is None else document, ())
    if closed:
        for key in top:
            if key not in _KEYS:
                raise InvalidPart(f"unknown key{reading.nearest(key, _KEYS)}", (key,))
    read = _each(top, "services", service_from_object, lambda found: found.service.key)
    mapped: dict[str, dict[str, Ports]] = {}
    for service, endpoints in read:
        _map_ports(mapped, service.key, endpoints)
    if not closed:
        staged = reading.mapping(_given(top, "stagedServices", {}), ("stagedServices",))
        for key, waiting in staged.items():
            _map_ports(mapped, key, endpoints_from_object(waiting, ("stagedServices", key)))
    workloads = _each(top, "workloads", workload_from_object, lambda found: found.uid)
    if closed:
        _check_endpoints(read, workloads)
    return StaticMesh(
        workloads=tuple(
            with_ports(each, mapped[each.uid]) if each.uid in mapped else each for each in workloads
        ),
        services=tuple(each.service for each in read),
        policies=tuple(_each(top, "policies", _policy, lambda found: found.key)),
    )


def _map_ports(
    mapped: dict[str, dict[str, Ports]], service: str, endpoints: Mapping[str, Ports]
) -> None:
    for uid, ports in endpoints.items():
        mapped.setdefault(uid, {})[service] = ports


def _check_endpoints(services: list[ReadService], workloads: list[Workload]) -> None:
    """That no endpoint is claimed by the service alone: it would silently be none."""
    members = {(each.service, workload.uid) for workload in workloads for each in workload.services}
    for index, (service, endpoints) in enumerate(services):
        for uid in endpoints:
            if (service.key, uid) not in members:
                raise InvalidPart(
                    f"no workload {uid} names {service.key} among its services",
                    ("services", index, "endpoints", uid),
                )


def _each(
    top: Mapping[str, object],
    section: str,
    read: Callable[[Any, Path], R],
    key_of: Callable[[R], str],
) -> list[R]:
    found: list[R] = []
    first: dict[str, Path] = {}
    for index, value in enumerate(reading.sequence(_given(top, section, []), (section,))):
        path = (section, index)
        resource = read(value, path)
        key = key_of(resource)
        if key in first:
            raise _Twice(f"{key} is there twice", path, first[key])
        first[key] = path
        found.append(resource)
    return found


def _given(top: Mapping[str, object], section: str, absent: object) -> object:
    value = top.get(section)
    return absent if value is None else value


def _policy(value: object, path: Path) -> Policy:
    try:
        return policy_from_object(value)
    except PolicyRefused as refused:
        raise InvalidPart(refused.reason, (*path, *refused.path)) from refused
