"""The JSON form of services, as ``/config_dump`` prints and mesh files hold them.

Source: ztunnel's /config_dump and local file, `ztunnel: src/state/service.rs`. Endpoints are part
of the printed form; read, they only tell which ports the workloads of a dump map themselves.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from nodenet.mesh import reading
from nodenet.mesh.gateway_json import gateway, gateway_to_object, network_address
from nodenet.mesh.model import (
    CidrAddress,
    HealthPolicy,
    IpFamilies,
    LoadBalancing,
    Mode,
    Ports,
    Scope,
    Service,
    ServiceEndpoint,
    Visibility,
    WeightedWaypoint,
)
from nodenet.mesh.policy import InvalidPart, Path
from nodenet.mesh.workload_json import STATUSES, ports_to_object

SCOPES: Final = {scope.name.capitalize(): scope for scope in Scope}
MODES: Final = {mode.name.capitalize(): mode for mode in Mode}
HEALTH_POLICIES: Final = {
    "OnlyHealthy": HealthPolicy.ONLY_HEALTHY,
    "AllowAll": HealthPolicy.ALLOW_ALL,
}
FAMILIES: Final = {
    "Dual": IpFamilies.DUAL,
    "IPv4": IpFamilies.IPV4_ONLY,
    "IPv6": IpFamilies.IPV6_ONLY,
}
VISIBILITIES: Final = {each.name.capitalize(): each for each in Visibility}

#: Ports by the uid of an endpoint.
EndpointPorts = Mapping[str, Ports]


class ReadService(NamedTuple):
    """A service, and what was said about its endpoints."""

    service: Service
    endpoints: EndpointPorts


def service_from_object(value: object, path: Path = ()) -> ReadService:
    """Reads one service; InvalidPart names the place of the fault."""
    found = reading.fields(value, path, _FIELDS)
    reading.needed(found, path, name="name", namespace="namespace", hostname="hostname")
    endpoints = found.pop("endpoints", {})
    return ReadService(Service(**found), endpoints)


def service_to_object(service: Service, endpoints: Iterable[ServiceEndpoint]) -> dict[str, Any]:
    """As a dump has it; ``endpoints`` are those that may have connections."""
    fields: dict[str, Any] = {
        "name": service.name,
        "namespace": service.namespace,
        "hostname": service.hostname,
        "vips": [str(vip) for vip in service.vips],
        "cidrVips": [{"network": c.network, "cidr": str(c)} for c in service.cidr_vips] or None,
        "ports": ports_to_object(service.ports),
        "endpoints": endpoints_to_object(endpoints),
        "subjectAltNames": list(service.subject_alt_names),
        "waypoint": service.waypoint and gateway_to_object(service.waypoint),
        "weightedWaypoints": [
            {"destination": gateway_to_object(each.destination), "weight": each.weight}
            for each in service.weighted_waypoints
        ]
        or None,
        "loadBalancer": service.load_balancing and _balancing(service.load_balancing),
        "ipFamilies": _FAMILY_NAMES.get(service.ip_families),
        "canonical": service.canonical,
        "visibility": service.visibility.name.capitalize(),
    }
    return {key: value for key, value in fields.items() if value is not None}


def static_service_to_object(service: Service) -> dict[str, Any]:
    """As a mesh file has it: who the endpoints are is said by the workloads."""
    found = service_to_object(service, ())
    del found["endpoints"]
    return found


def endpoints_to_object(endpoints: Iterable[ServiceEndpoint]) -> dict[str, Any]:
    """``{uid: {"workloadUid": uid, "port": {"80": 8080}, "status": "Healthy"}}``."""
    return {
        each.uid: {
            "workloadUid": each.uid,
            "port": ports_to_object(each.ports),
            "status": each.status.name.capitalize(),
        }
        for each in endpoints
    }


def endpoints_from_object(value: object, path: Path) -> EndpointPorts:
    """The ports of `endpoints_to_object`, by uid."""
    found: dict[str, Ports] = {}
    for uid, item in reading.mapping(value, path).items():
        here = (*path, uid)
        parts = reading.fields(item, here, _ENDPOINT_FIELDS)
        if parts.get("uid", uid) != uid:
            raise InvalidPart(f"the endpoint of {uid!r} is another one", (*here, "workloadUid"))
        found[uid] = parts.get("ports", ())
    return found


def _balancing(balancing: LoadBalancing) -> dict[str, Any]:
    return {
        "routingPreferences": [scope.name.capitalize() for scope in balancing.routing_preference],
        "mode": balancing.mode.name.capitalize(),
        "healthPolicy": _HEALTH_POLICY_NAMES[balancing.health_policy],
    }


def _read_balancing(value: object, path: Path) -> LoadBalancing:
    return LoadBalancing(**reading.fields(value, path, _BALANCING_FIELDS))


def _read_cidr(value: object, path: Path) -> CidrAddress:
    found = reading.fields(value, path, _CIDR_FIELDS)
    reading.needed(found, path, cidr="cidr")
    network: ipaddress.IPv4Network | ipaddress.IPv6Network = found["cidr"]
    return CidrAddress(found.get("network", ""), network.network_address.packed, network.prefixlen)


def _read_range(value: object, path: Path) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    written = reading.text(value, path)
    try:
        return ipaddress.ip_network(written, strict=False)
    except ValueError:
        raise InvalidPart(f"{written!r} is not a range like 10.0.0.0/8", path) from None


def _read_weighted(value: object, path: Path) -> WeightedWaypoint:
    found = reading.fields(value, path, _WEIGHTED_FIELDS)
    reading.needed(found, path, destination="destination", weight="weight")
    return WeightedWaypoint(found["destination"], found["weight"])


_FAMILY_NAMES: Final = {family: name for name, family in FAMILIES.items()}
_HEALTH_POLICY_NAMES: Final = {policy: name for name, policy in HEALTH_POLICIES.items()}
_ENDPOINT_FIELDS: Final[reading.Fields] = {
    "workloadUid": ("uid", reading.text),
    "port": ("ports", reading.port_map(least_target=0)),
    "status": ("status", reading.one_of(STATUSES)),
}
_BALANCING_FIELDS: Final[reading.Fields] = {
    "routingPreferences": ("routing_preference", reading.each(reading.one_of(SCOPES))),
    "mode": ("mode", reading.one_of(MODES)),
    "healthPolicy": ("health_policy", reading.one_of(HEALTH_POLICIES)),
}
_CIDR_FIELDS: Final[reading.Fields] = {
    "network": ("network", reading.name),
    "cidr": ("cidr", _read_range),
}
_WEIGHTED_FIELDS: Final[reading.Fields] = {
    "destination": ("destination", gateway),
    "weight": ("weight", reading.number(0, reading.CAPACITY_MAX)),
}
_FIELDS: Final[reading.Fields] = {
    "name": ("name", reading.name),
    "namespace": ("namespace", reading.name),
    "hostname": ("hostname", reading.name),
    "vips": ("vips", reading.each(network_address)),
    "cidrVips": ("cidr_vips", reading.each(_read_cidr)),
    "ports": ("ports", reading.port_map(least_target=0)),
    "endpoints": ("endpoints", endpoints_from_object),
    "subjectAltNames": ("subject_alt_names", reading.each(reading.text)),
    "waypoint": ("waypoint", gateway),
    "weightedWaypoints": ("weighted_waypoints", reading.each(_read_weighted)),
    "loadBalancer": ("load_balancing", _read_balancing),
    "ipFamilies": ("ip_families", reading.one_of(FAMILIES)),
    "canonical": ("canonical", reading.flag),
    "visibility": ("visibility", reading.one_of(VISIBILITIES)),
}
