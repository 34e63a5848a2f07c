"""Workloads and services in few words, for tables of cases."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from nodenet.endpoint import IPAddress
from nodenet.mesh.gateway_json import gateway
from nodenet.mesh.model import (
    CidrAddress,
    Endpoint,
    GatewayAddress,
    Membership,
    NetworkAddress,
    Service,
    TunnelProtocol,
    Workload,
)
from nodenet.mesh.policy import Policy
from nodenet.mesh.state import Batch, MeshState

HBONE = TunnelProtocol.HBONE
TCP = TunnelProtocol.TCP


def ip(text: str) -> IPAddress:
    return ipaddress.ip_address(text)


def packed(text: str) -> bytes:
    return ip(text).packed


def at(text: str) -> Endpoint:
    """``10.0.0.1:80`` or ``[fd00::1]:80``."""
    host, _, port = text.rpartition(":")
    return Endpoint(ip(host.strip("[]")), int(port))


def ref(destination: str, port: int = 15008) -> GatewayAddress:
    """A waypoint or gateway reference: ``network/IP`` or ``namespace/hostname``."""
    return gateway({"destination": destination, "hboneMtlsPort": port}, ())


def pod(
    name: str,
    *addresses: str,
    services: Mapping[str, Mapping[int, int]] | Sequence[str] = (),
    namespace: str = "ns",
    **fields: Any,
) -> Workload:
    """A pod in HBONE; ``services`` by key, with the ports it maps itself or without."""
    mapped = services if isinstance(services, Mapping) else dict.fromkeys(services, {})
    fields.setdefault("uid", f"c1//Pod/{namespace}/{name}")
    fields.setdefault("protocol", HBONE)
    fields.setdefault("service_account", name)
    return Workload(
        name=name,
        namespace=namespace,
        addresses=tuple(map(packed, addresses)),
        services=tuple(Membership(key, tuple(ports.items())) for key, ports in mapped.items()),
        **fields,
    )


def service(
    name: str,
    *vips: str,
    ports: Mapping[int, int] | None = None,
    namespace: str = "ns",
    **fields: Any,
) -> Service:
    """A service ``NAME.NAMESPACE`` with port 80 to 8080; VIPs are ``IP`` or ``network/IP``."""
    exact, ranges = [], []
    for vip in vips:
        network, _, rest = vip.rpartition("/") if vip.count("/") == 1 else ("", "", vip)
        if network and network[0].isdigit() or network.count(":") > 1:
            found = ipaddress.ip_network(vip)
            ranges.append(CidrAddress("", found.network_address.packed, found.prefixlen))
        else:
            exact.append(NetworkAddress(network, packed(rest)))
    fields.setdefault("hostname", f"{name}.{namespace}")
    return Service(
        name=name,
        namespace=namespace,
        vips=tuple(exact),
        cidr_vips=tuple(ranges),
        ports=tuple(({80: 8080} if ports is None else ports).items()),
        **fields,
    )


def mesh(*resources: Workload | Service | Policy, node: str = "") -> MeshState:
    """A state that holds them."""
    state = MeshState(node=node)
    state.apply(Batch(upserts=resources))
    return state


def rng(seed: int = 1) -> Random:
    return Random(seed)


class Fixed(Random):
    """Chooses at a given point of the range, 0 to 1."""

    def __init__(self, point: float) -> None:
        super().__init__()
        self._point = point

    def random(self) -> float:
        return self._point
