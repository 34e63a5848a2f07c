"""The JSON form of references to waypoints and gateways, used by workloads and services."""

from __future__ import annotations

from typing import Any, Final

from nodenet.abi import HBONE_PORT
from nodenet.mesh import reading
from nodenet.mesh.model import GatewayAddress, NamespacedHostname, NetworkAddress
from nodenet.mesh.policy import InvalidPart, Path


def destination(value: object, path: Path) -> NetworkAddress | NamespacedHostname:
    """``network/IP`` if what follows the slash is an address, else ``namespace/hostname``."""
    written = reading.text(value, path)
    head, slash, tail = written.partition("/")
    if not slash or not tail or "/" in tail:
        raise InvalidPart(
            f"{written!r} is neither network/IP nor namespace/hostname; "
            "an address of the empty network is written /10.0.0.1",
            path,
        )
    packed = reading.packed(tail)
    if packed is not None:
        return NetworkAddress(head, packed)
    if not head:
        raise InvalidPart(f"{written!r} has no namespace before the hostname", path)
    return NamespacedHostname(head, tail)


def network_address(value: object, path: Path) -> NetworkAddress:
    """``network/IP`` alone."""
    found = destination(value, path)
    if not isinstance(found, NetworkAddress):
        raise InvalidPart(f"{found.hostname!r} is not an IP address", path)
    return found


_FIELDS: Final[reading.Fields] = {
    "destination": ("destination", destination),
    "hboneMtlsPort": ("hbone_mtls_port", reading.number(1, reading.PORT_MAX)),
}


def gateway(value: object, path: Path) -> GatewayAddress:
    """``{"destination": "ns/host", "hboneMtlsPort": 15008}``; that port is the default."""
    found = reading.fields(value, path, _FIELDS)
    reading.needed(found, path, destination="destination")
    return GatewayAddress(found["destination"], found.get("hbone_mtls_port", HBONE_PORT))


def gateway_to_object(found: GatewayAddress) -> dict[str, Any]:
    """As `gateway` reads it."""
    return {"destination": str(found.destination), "hboneMtlsPort": found.hbone_mtls_port}
