"""The JSON form of workloads, as ``/config_dump`` prints and mesh files hold them.

Source: ztunnel's /config_dump and local file, `ztunnel: src/state/workload.rs`. A dump names the
services of a workload in a list, a file maps them to ports; both are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from nodenet.mesh import reading
from nodenet.mesh.gateway_json import gateway, gateway_to_object
from nodenet.mesh.model import (
    DEFAULT_CLUSTER,
    DEFAULT_SERVICE_ACCOUNT,
    DEFAULT_TRUST_DOMAIN,
    DEFAULT_WORKLOAD_TYPE,
    NO_LOCALITY,
    ApplicationTunnel,
    Locality,
    Membership,
    NetworkMode,
    Ports,
    Status,
    TunnelKind,
    TunnelProtocol,
    Workload,
)
from nodenet.mesh.policy import InvalidPart, Path

PROTOCOLS: Final = {"TCP": TunnelProtocol.TCP, "HBONE": TunnelProtocol.HBONE}
NETWORK_MODES: Final = {
    "Standard": NetworkMode.STANDARD,
    "HostNetwork": NetworkMode.HOST_NETWORK,
}
STATUSES: Final = {"Healthy": Status.HEALTHY, "Unhealthy": Status.UNHEALTHY}
TUNNELS: Final = {"NONE": TunnelKind.NONE, "PROXY": TunnelKind.PROXY}

#: Attributes that have a default also when the text given is empty, as on the wire.
_EMPTY_DEFAULTS: Final = {
    "trust_domain": DEFAULT_TRUST_DOMAIN,
    "service_account": DEFAULT_SERVICE_ACCOUNT,
    "cluster_id": DEFAULT_CLUSTER,
    "workload_type": DEFAULT_WORKLOAD_TYPE,
}


def workload_from_object(value: object, path: Path = ()) -> Workload:
    """Reads one workload; InvalidPart names the place of the fault.

    Without a uid it gets the one that a pod of its cluster, namespace and name would have.
    """
    found = reading.fields(value, path, _FIELDS)
    reading.needed(found, path, name="name", namespace="namespace")
    for attribute, default in _EMPTY_DEFAULTS.items():
        found[attribute] = found.get(attribute) or default
    if not found.get("uid"):
        found["uid"] = f"{found['cluster_id']}//Pod/{found['namespace']}/{found['name']}"
    return Workload(**found)


def workload_to_object(workload: Workload) -> dict[str, Any]:
    """As a dump has it: what is empty is left out, services are named without ports."""
    fields: dict[str, Any] = {
        "workloadIps": [str(ip) for ip in workload.ips],
        "waypoint": workload.waypoint and gateway_to_object(workload.waypoint),
        "networkGateway": workload.network_gateway and gateway_to_object(workload.network_gateway),
        "protocol": workload.protocol.name,
        "networkMode": _NETWORK_MODE_NAMES[workload.network_mode],
        "uid": workload.uid or None,
        "name": workload.name,
        "namespace": workload.namespace,
        "trustDomain": workload.trust_domain or None,
        "serviceAccount": workload.service_account or None,
        "network": workload.network or None,
        "workloadName": workload.workload_name or None,
        "workloadType": workload.workload_type or None,
        "canonicalName": workload.canonical_name or None,
        "canonicalRevision": workload.canonical_revision or None,
        "hostname": workload.hostname or None,
        "node": workload.node or None,
        "nativeTunnel": workload.native_tunnel or None,
        "applicationTunnel": workload.application_tunnel and _tunnel(workload.application_tunnel),
        "authorizationPolicies": list(workload.authorization_policies) or None,
        "status": workload.status.name.capitalize(),
        "clusterId": workload.cluster_id,
        "locality": None if workload.locality == NO_LOCALITY else _locality(workload.locality),
        "services": [each.service for each in workload.services] or None,
        "capacity": workload.capacity,
    }
    return {key: value for key, value in fields.items() if value is not None}


def static_workload_to_object(workload: Workload) -> dict[str, Any]:
    """As a mesh file has it: services with the ports that the workload maps itself."""
    found = workload_to_object(workload)
    if workload.services:
        found["services"] = {
            each.service: ports_to_object(each.ports) for each in workload.services
        }
    return found


def ports_to_object(ports: Ports) -> dict[str, int]:
    """``{"80": 8080}``."""
    return {str(port): target for port, target in ports}


def with_ports(workload: Workload, ports: Mapping[str, Ports]) -> Workload:
    """The workload with these ports, by service, where it maps none itself.

    For dumps, in which the ports are those of the services' endpoints.
    """
    services = tuple(
        each if each.ports else Membership(each.service, ports.get(each.service, ()))
        for each in workload.services
    )
    return msgspec.structs.replace(workload, services=services)


def _tunnel(tunnel: ApplicationTunnel) -> dict[str, Any]:
    found: dict[str, Any] = {"protocol": tunnel.protocol.name}
    if tunnel.port is not None:
        found["port"] = tunnel.port
    return found


def _locality(locality: Locality) -> dict[str, str]:
    return {"region": locality.region, "zone": locality.zone, "subzone": locality.subzone}


def _read_locality(value: object, path: Path) -> Locality:
    return Locality(**reading.fields(value, path, _LOCALITY_FIELDS))


def _read_tunnel(value: object, path: Path) -> ApplicationTunnel:
    found = reading.fields(value, path, _TUNNEL_FIELDS)
    # on the wire 0 stands for none
    return ApplicationTunnel(found.get("protocol", TunnelKind.NONE), found.get("port") or None)


def _read_services(value: object, path: Path) -> tuple[Membership, ...]:
    if isinstance(value, list):
        return tuple(
            Membership(service_key(key, (*path, index))) for index, key in enumerate(value)
        )
    return tuple(
        Membership(service_key(key, (*path, key)), _PORTS(ports or {}, (*path, key)))
        for key, ports in reading.mapping(value, path).items()
    )


def service_key(value: object, path: Path) -> str:
    """``namespace/hostname``."""
    written = reading.text(value, path)
    namespace, slash, hostname = written.partition("/")
    if not (namespace and slash and hostname) or "/" in hostname:
        raise InvalidPart(f"{written!r} is not namespace/hostname", path)
    return written


def _read_policy_key(value: object, path: Path) -> str:
    written = reading.text(value, path)
    if written.count("/") != 1:
        raise InvalidPart(f"{written!r} is not namespace/name", path)
    return written


_PORTS: Final = reading.port_map(least_target=0)
_NETWORK_MODE_NAMES: Final = {mode: name for name, mode in NETWORK_MODES.items()}
_LOCALITY_FIELDS: Final[reading.Fields] = {
    key: (key, reading.text) for key in ("region", "zone", "subzone")
}
_TUNNEL_FIELDS: Final[reading.Fields] = {
    "protocol": ("protocol", reading.one_of(TUNNELS)),
    "port": ("port", reading.number(0, reading.PORT_MAX)),
}
_FIELDS: Final[reading.Fields] = {
    "workloadIps": ("addresses", reading.each(reading.address)),
    "waypoint": ("waypoint", gateway),
    "networkGateway": ("network_gateway", gateway),
    "protocol": ("protocol", reading.one_of(PROTOCOLS)),
    "networkMode": ("network_mode", reading.one_of(NETWORK_MODES)),
    "uid": ("uid", reading.text),
    "name": ("name", reading.name),
    "namespace": ("namespace", reading.name),
    "trustDomain": ("trust_domain", reading.name),
    "serviceAccount": ("service_account", reading.name),
    "network": ("network", reading.name),
    "workloadName": ("workload_name", reading.text),
    "workloadType": ("workload_type", reading.text),
    "canonicalName": ("canonical_name", reading.text),
    "canonicalRevision": ("canonical_revision", reading.text),
    "hostname": ("hostname", reading.name),
    "node": ("node", reading.text),
    "nativeTunnel": ("native_tunnel", reading.flag),
    "applicationTunnel": ("application_tunnel", _read_tunnel),
    "authorizationPolicies": ("authorization_policies", reading.each(_read_policy_key)),
    "status": ("status", reading.one_of(STATUSES)),
    "clusterId": ("cluster_id", reading.text),
    "locality": ("locality", _read_locality),
    "services": ("services", _read_services),
    "capacity": ("capacity", reading.number(0, reading.CAPACITY_MAX)),
}
