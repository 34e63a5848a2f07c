"""What the mesh knows: workloads, services and how they refer to each other.

Source: package ``istio.workload`` (ztunnel: proto/workload.proto), after its defaults have been
filled in. The structs are made to be kept encoded (`nodenet.mesh.state`): fields without names on
the wire, addresses as 4 or 16 bytes in network order, mappings as tuples of pairs. Nobody outside
this package needs the packed form, `Workload.ips` and the like give `ipaddress` objects.

JSON names (``workloadIps`` and so on) are the business of `nodenet.mesh.dump` and
`nodenet.mesh.static_file`.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from nodenet.endpoint import IPAddress

DEFAULT_TRUST_DOMAIN: Final = "cluster.local"
DEFAULT_SERVICE_ACCOUNT: Final = "default"
DEFAULT_CLUSTER: Final = "Kubernetes"
DEFAULT_WORKLOAD_TYPE: Final = "deployment"

#: Addresses kept as objects: those of the endpoints that connections go to. 120 bytes each.
_ADDRESSES_CACHED: Final = 16384

#: Pairs of service port and target port; target 0 is a named port, which each endpoint maps.
Ports = tuple[tuple[int, int], ...]


@lru_cache(_ADDRESSES_CACHED)
def ip_of(packed: bytes) -> IPAddress:
    """The address of 4 or 16 bytes in network order; ValueError for any other length."""
    if len(packed) == 4:
        return ipaddress.IPv4Address(packed)
    if len(packed) == 16:
        return ipaddress.IPv6Address(packed)
    raise ValueError(f"an address has 4 or 16 bytes, not {len(packed)}")


def target_port(ports: Ports, service_port: int) -> int | None:
    """What the port maps to; 0 for a named port, None when it is not listed."""
    for port, target in ports:
        if port == service_port:
            return target
    return None


class Endpoint(NamedTuple):
    """An address with a port: where a connection goes or wanted to go."""

    ip: IPAddress
    port: int

    def __str__(self) -> str:
        """``10.0.0.1:80`` or ``[fd00::1]:80``."""
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"


class TunnelProtocol(IntEnum):
    """How a workload is reached; TCP is NONE on the wire, where LEGACY_ISTIO_MTLS is refused."""

    TCP = 0
    HBONE = 1


class NetworkMode(IntEnum):
    """Whether the workload has addresses of its own or shares the node's."""

    STANDARD = 0
    HOST_NETWORK = 1


class Status(IntEnum):
    """Health of a workload."""

    HEALTHY = 0
    UNHEALTHY = 1


class TunnelKind(IntEnum):
    """What the application's tunnel expects before the bytes (ApplicationTunnel.Protocol)."""

    NONE = 0
    PROXY = 1


class Scope(IntEnum):
    """What a client and an endpoint may share; UNSPECIFIED_SCOPE (0) is refused when decoded."""

    REGION = 1
    ZONE = 2
    SUBZONE = 3
    NODE = 4
    CLUSTER = 5
    NETWORK = 6


class Mode(IntEnum):
    """How `LoadBalancing.routing_preference` is used. STANDARD is UNSPECIFIED_MODE: not at all."""

    STANDARD = 0
    STRICT = 1
    FAILOVER = 2
    PASSTHROUGH = 3


class HealthPolicy(IntEnum):
    """Which endpoints of a service may get connections."""

    ONLY_HEALTHY = 0
    ALLOW_ALL = 1


class IpFamilies(IntEnum):
    """Address families of a service."""

    AUTOMATIC = 0
    IPV4_ONLY = 1
    IPV6_ONLY = 2
    DUAL = 3

    def accepts(self, packed: bytes) -> bool:
        """Whether the service may be reached at this address, given in network order."""
        if self is IpFamilies.IPV4_ONLY:
            return len(packed) == 4
        if self is IpFamilies.IPV6_ONLY:
            return len(packed) == 16
        return True


class Visibility(IntEnum):
    """Who sees a service: every client, or those of its own namespace."""

    PUBLIC = 0
    NAMESPACE = 1


class _Struct(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields by position; holds no cycles, so the collector need not look at it."""


class NetworkAddress(_Struct, frozen=True, tag=0):
    """An address within a network; the same address may exist in another network."""

    network: str
    address: bytes

    @property
    def ip(self) -> IPAddress:
        """The address as an object."""
        return ip_of(self.address)

    def __str__(self) -> str:
        """``network/ip``, in the empty network ``/ip``."""
        return f"{self.network}/{self.ip}"


class NamespacedHostname(_Struct, frozen=True, tag=1):
    """A service, or a workload, by its hostname."""

    namespace: str
    hostname: str

    def __str__(self) -> str:
        """``namespace/hostname``, the key of a service."""
        return f"{self.namespace}/{self.hostname}"


class CidrAddress(_Struct, frozen=True):
    """A service's virtual addresses given as a range; host bits are zero."""

    network: str
    address: bytes
    length: int

    def __str__(self) -> str:
        """``ip/length``."""
        return f"{ip_of(self.address)}/{self.length}"


class GatewayAddress(_Struct, frozen=True):
    """Where a waypoint or a network's gateway is found."""

    destination: NetworkAddress | NamespacedHostname
    hbone_mtls_port: int


class WeightedWaypoint(_Struct, frozen=True):
    """One of several waypoints of a service; taken in proportion to the weight."""

    destination: GatewayAddress
    weight: int


class Locality(_Struct, frozen=True):
    """Where something runs. Empty strings equal each other."""

    region: str = ""
    zone: str = ""
    subzone: str = ""


class ApplicationTunnel(_Struct, frozen=True):
    """The application takes its connections at one port, whatever port was addressed."""

    protocol: TunnelKind = TunnelKind.NONE
    port: int | None = None


class LoadBalancing(_Struct, frozen=True):
    """Which endpoints a service prefers."""

    routing_preference: tuple[Scope, ...] = ()
    mode: Mode = Mode.STANDARD
    health_policy: HealthPolicy = HealthPolicy.ONLY_HEALTHY


class Membership(_Struct, frozen=True):
    """That a workload is an endpoint of a service, with the ports it maps itself."""

    service: str
    """``namespace/hostname``."""
    ports: Ports = ()


NO_LOCALITY: Final = Locality()


class Workload(_Struct, frozen=True, kw_only=True):
    """A pod, a virtual machine, or an external host. ``uid`` is its key."""

    uid: str
    name: str = ""
    namespace: str = ""
    addresses: tuple[bytes, ...] = ()
    """In network order, 4 or 16 bytes each; see `ips`."""
    network: str = ""
    protocol: TunnelProtocol = TunnelProtocol.TCP
    network_mode: NetworkMode = NetworkMode.STANDARD
    trust_domain: str = DEFAULT_TRUST_DOMAIN
    service_account: str = DEFAULT_SERVICE_ACCOUNT
    waypoint: GatewayAddress | None = None
    network_gateway: GatewayAddress | None = None
    node: str = ""
    canonical_name: str = ""
    canonical_revision: str = ""
    hostname: str = ""
    workload_type: str = DEFAULT_WORKLOAD_TYPE
    """Lower-case name of the protobuf enum: deployment, cronjob, pod, job."""
    workload_name: str = ""
    native_tunnel: bool = False
    application_tunnel: ApplicationTunnel | None = None
    authorization_policies: tuple[str, ...] = ()
    """Keys ``namespace/name`` of the policies that select this workload."""
    status: Status = Status.HEALTHY
    cluster_id: str = DEFAULT_CLUSTER
    locality: Locality = NO_LOCALITY
    services: tuple[Membership, ...] = ()
    capacity: int = 1
    """Weight in load balancing; 0 gets no connections."""

    @property
    def ips(self) -> tuple[IPAddress, ...]:
        """Its addresses; none for a workload that is reached by hostname or gateway."""
        return tuple(map(ip_of, self.addresses))

    @property
    def identity(self) -> str:
        """The SPIFFE id its certificate carries."""
        return f"spiffe://{self.trust_domain}/ns/{self.namespace}/sa/{self.service_account}"

    @property
    def is_hbone(self) -> bool:
        """Whether connections to it are tunnelled."""
        return self.protocol is TunnelProtocol.HBONE

    def owns(self, ip: IPAddress) -> bool:
        """Whether the address is one of its own."""
        return ip.packed in self.addresses

    def ports_in(self, service: str) -> Ports | None:
        """Ports it maps itself as an endpoint of the service (a key); None: it is no endpoint."""
        for membership in self.services:
            if membership.service == service:
                return membership.ports
        return None


class Service(_Struct, frozen=True, kw_only=True):
    """Workloads behind virtual addresses and a hostname. Its endpoints are the state's to know."""

    name: str
    namespace: str
    hostname: str
    vips: tuple[NetworkAddress, ...] = ()
    cidr_vips: tuple[CidrAddress, ...] = ()
    ports: Ports = ()
    subject_alt_names: tuple[str, ...] = ()
    waypoint: GatewayAddress | None = None
    weighted_waypoints: tuple[WeightedWaypoint, ...] = ()
    load_balancing: LoadBalancing | None = None
    ip_families: IpFamilies = IpFamilies.AUTOMATIC
    canonical: bool = False
    visibility: Visibility = Visibility.PUBLIC

    @property
    def key(self) -> str:
        """``namespace/hostname``, unique in the mesh."""
        return f"{self.namespace}/{self.hostname}"

    @property
    def mode(self) -> Mode:
        """How endpoints are chosen."""
        return self.load_balancing.mode if self.load_balancing else Mode.STANDARD

    @property
    def health_policy(self) -> HealthPolicy:
        """Which endpoints may be chosen."""
        lb = self.load_balancing
        return lb.health_policy if lb else HealthPolicy.ONLY_HEALTHY

    def visible_to(self, namespace: str | None) -> bool:
        """Whether clients of the namespace may address it; None stands for any client."""
        return (
            self.visibility is Visibility.PUBLIC or namespace is None or namespace == self.namespace
        )


class Placement(NamedTuple):
    """Where an endpoint runs, as far as load balancing asks. Shared by all endpoints of a node."""

    network: str
    cluster_id: str
    node: str
    locality: Locality


class ServiceEndpoint(msgspec.Struct, frozen=True, gc=False):
    """A workload as an endpoint of one service, with what choosing among endpoints needs.

    There is one for each membership, hundreds of thousands in a large mesh: choosing must not
    decode workloads, so what it asks about them stands here.
    """

    uid: str
    ports: Ports
    status: Status
    capacity: int
    placement: Placement
    has_address: bool
    """Has an address or a hostname."""
    has_gateway: bool
    has_tunnel: bool
    """Has an application tunnel, with or without a port."""
