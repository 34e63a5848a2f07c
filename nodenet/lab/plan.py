"""What a lab consists of, worked out before anything is made: names, addresses, who is captured.

Pods are called by a letter and the number of their node: ``a1`` and ``b1`` live on ``n1``, ``a2``
on ``n2``. The first pod of each node is enrolled, the others are there to show that nothing
happens to them. Everything routes: a pod has a /32 and its node as gateway (as the ptp CNI plugin
does it), the nodes have a router between them, and that router leads nowhere else.

The enrolled pods are a mesh, unless the lab is a plain one: HBONE between them, a service with an
endpoint on each of the first two nodes, and a second port of every pod that is for one pod alone.
"""

from __future__ import annotations

import ipaddress
import re
import string
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from nodenet.errors import UsageError
from nodenet.paths import LAB_ID, Instance

Backend = Literal["ebpf", "iptables"]

DEFAULT_NET: Final = "10.77.0.0/16"
#: The port every pod's workload answers on.
WORKLOAD_PORT: Final = 8080
#: The other one: in a mesh a policy keeps it for one pod.
GUARDED_PORT: Final = 8081
WORKLOAD_PORTS: Final = (WORKLOAD_PORT, GUARDED_PORT)
#: Namespace part of a lab pod's name: ``lab/a1``.
POD_NAMESPACE: Final = "lab"
MAX_NODES: Final = 32
"""A lab runs a proxy a node and is proved pair by pair; more than this is no longer a try-out."""
SERVICE_NAME: Final = "web"
SERVICE_PORT: Final = 80
"""Of the service; behind it is `WORKLOAD_PORT`."""
#: How many pods stand behind the service, each on a node of its own.
MAX_ENDPOINTS: Final = 2
#: The part of the range that no node has and nothing routes to: virtual addresses.
_VIRTUAL_NET: Final = 255
#: ``n`` is left out: n1 is a node.
_POD_LETTERS: Final = string.ascii_lowercase.replace("n", "")
MAX_PODS_PER_NODE: Final = len(_POD_LETTERS)
#: First host number of a pod; 1 is its gateway.
_FIRST_POD: Final = 2
_NET_HINT: Final = f"use a /16 as {DEFAULT_NET}"
_DEFAULT_LAB: Final = "default"
_ROUTER: Final = "net"
_NAMESPACE_LABEL: Final = re.compile(rf"{_ROUTER}|[a-z]\d+")


class Family(Enum):
    """Which addresses the lab has; the value is the text of ``--family``."""

    V4 = "4"
    V6 = "6"
    BOTH = "both"

    @property
    def v4(self) -> bool:
        """Whether pods have IPv4 addresses."""
        return self is not Family.V6

    @property
    def v6(self) -> bool:
        """Whether pods have IPv6 addresses."""
        return self is not Family.V4

    @property
    def numbers(self) -> tuple[Literal[4, 6], ...]:
        """The families as numbers, IPv4 first."""
        return tuple(n for n, has in ((4, self.v4), (6, self.v6)) if has)  # type: ignore[misc] # mypy widens the literals


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressed:
    """What has a name and at most one address of each family."""

    name: str
    ip4: ipaddress.IPv4Address | None
    ip6: ipaddress.IPv6Address | None

    def address(self, family: Literal[4, 6]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address of that family; a ValueError when the lab does not have it."""
        found = self.ip4 if family == 4 else self.ip6
        if found is None:
            raise ValueError(f"{self.name} has no IPv{family} address")
        return found

    @property
    def addresses(self) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, ...]:
        """All of them, IPv4 first."""
        return tuple(a for a in (self.ip4, self.ip6) if a is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Addressed):
    """A namespace: the router, a node or a pod."""

    netns: str
    """Name of the namespace below /run/netns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Host):
    """A node: routes for its pods. Its address is also their gateway."""

    number: int
    net4: ipaddress.IPv4Network | None
    net6: ipaddress.IPv6Network | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod(Host):
    """A pod on a node; ``enrolled`` is whether `nodenet lab up` captures it."""

    node: str
    enrolled: bool

    @property
    def full_name(self) -> str:
        """``lab/a1``: the name in records, statistics and JSON."""
        return f"{POD_NAMESPACE}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualService(Addressed):
    """A service: addresses that nobody has, and the pods that answer for it."""

    endpoints: tuple[Pod, ...]

    @property
    def full_name(self) -> str:
        """``lab/web.lab``: namespace and hostname, its key in the mesh."""
        return f"{POD_NAMESPACE}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """A whole lab. Equal plans make equal labs, so `up` compares the plan with what is up."""

    lab: str
    instance_id: str
    net4: ipaddress.IPv4Network
    net6: ipaddress.IPv6Network
    family: Family
    backend: Backend
    mesh: bool
    """HBONE between the enrolled pods; False: their proxies pass plaintext on."""
    router: Host
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]

    @property
    def instance(self) -> Instance:
        """Where the lab's kernel objects and records are."""
        return Instance(self.instance_id)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Every namespace: the router, the nodes, the pods."""
        return (self.router, *self.nodes, *self.pods)

    def node(self, name: str) -> Node:
        """The node of that name (KeyError: there is none)."""
        return {n.name: n for n in self.nodes}[name]

    def pod(self, name: str) -> Pod | None:
        """The pod called ``a1`` or ``lab/a1``, or None."""
        return next((p for p in self.pods if name in (p.name, p.full_name)), None)

    def pods_of(self, node: Node) -> tuple[Pod, ...]:
        """The pods on that node, in order."""
        return tuple(p for p in self.pods if p.node == node.name)

    @property
    def members(self) -> tuple[Pod, ...]:
        """The pods of the mesh: to them goes HBONE. None in a plain lab."""
        return tuple(p for p in self.pods if p.enrolled) if self.mesh else ()

    @property
    def service(self) -> VirtualService | None:
        """The service of the mesh; its addresses are in the lab's range and routed nowhere."""
        if not self.members:
            return None
        virtual = _VIRTUAL_NET
        return VirtualService(
            name=f"{SERVICE_NAME}.{POD_NAMESPACE}",
            ip4=self.net4[(virtual << 8) + 1] if self.family.v4 else None,
            ip6=self.net6[(virtual << 96) + 1] if self.family.v6 else None,
            endpoints=self.members[:MAX_ENDPOINTS],
        )

    @property
    def privileged(self) -> Pod | None:
        """The one pod that a policy lets reach `GUARDED_PORT` of the others; None: no policy."""
        return self.members[0] if self.members else None

    def hosts_file(self) -> str:
        """Text for /etc/hosts inside the pods, so that ``curl a2:8080`` works."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for host in (*self.nodes, *self.pods):
            lines += [f"{a} {host.name} {host.name}.{POD_NAMESPACE}" for a in host.addresses]
        if self.service is not None:
            lines += [f"{a} {self.service.name}" for a in self.service.addresses]
        return "\n".join(lines) + "\n"


def lab_name(instance_id: str) -> str:
    """The lab's name by its instance id: ``default`` for the one made without ``--id``."""
    if instance_id == _DEFAULT_LAB:
        raise UsageError(f"lab id {instance_id!r}: means the lab without --id", hint="use another")
    return _DEFAULT_LAB if instance_id == LAB_ID else instance_id


def namespace_name(lab: str, label: str) -> str:
    """Name below /run/netns of the lab's namespace for a pod, a node or the router."""
    return f"nn-{lab}-{label}"


def owns_namespace(lab: str, name: str) -> bool:
    """Whether a namespace of that name can only be this lab's."""
    prefix = namespace_name(lab, "")
    return name.startswith(prefix) and bool(_NAMESPACE_LABEL.fullmatch(name.removeprefix(prefix)))


def ula_prefix(net4: ipaddress.IPv4Network) -> ipaddress.IPv6Network:
    """The lab's IPv6 range: ``fd77::/16`` for 10.77.0.0/16, always two digits of the octet."""
    return ipaddress.IPv6Network(f"fd{net4.network_address.packed[1] % 100:02d}::/16")


def parse_net(text: str) -> ipaddress.IPv4Network:
    """The value of ``--net``: an IPv4 /16, else UsageError."""
    try:
        net = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"--net {text}: {error}", hint=_NET_HINT) from error
    if net.prefixlen != 16:
        raise UsageError(f"--net {text}: not a /16", hint=_NET_HINT)
    return net


def make_plan(
    *,
    instance_id: str = LAB_ID,
    nodes: int = 2,
    pods: int = 2,
    family: Family = Family.BOTH,
    backend: Backend = "ebpf",
    net: str = DEFAULT_NET,
    enroll: bool = True,
    mesh: bool = True,
) -> LabPlan:
    """The lab with that many nodes and that many pods on each.

    ``enroll`` False makes one that captures nothing: namespaces and workloads alone, and no mesh.
    Raises UsageError for counts that have no address or letter, or a range that is no /16.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"--nodes {nodes}: out of range 1-{MAX_NODES}")
    if not 1 <= pods <= MAX_PODS_PER_NODE:
        raise UsageError(f"--pods {pods}: out of range 1-{MAX_PODS_PER_NODE}")
    lab = lab_name(instance_id)
    net4 = parse_net(net)
    net6 = ula_prefix(net4)

    def ip4(node: int, host: int) -> ipaddress.IPv4Address | None:
        return net4[(node << 8) + host] if family.v4 else None

    def ip6(node: int, host: int) -> ipaddress.IPv6Address | None:
        return net6[(node << 96) + host] if family.v6 else None

    numbers = range(1, nodes + 1)
    return LabPlan(
        lab=lab,
        instance_id=instance_id,
        net4=net4,
        net6=net6,
        family=family,
        backend=backend,
        mesh=mesh and enroll,
        router=Host(name=_ROUTER, netns=namespace_name(lab, _ROUTER), ip4=ip4(0, 1), ip6=ip6(0, 1)),
        nodes=tuple(
            Node(
                name=f"n{n}",
                number=n,
                netns=namespace_name(lab, f"n{n}"),
                ip4=ip4(n, 1),
                ip6=ip6(n, 1),
                net4=ipaddress.IPv4Network((net4[n << 8], 24)) if family.v4 else None,
                net6=ipaddress.IPv6Network((net6[n << 96], 32)) if family.v6 else None,
            )
            for n in numbers
        ),
        pods=tuple(
            Pod(
                name=f"{letter}{n}",
                node=f"n{n}",
                netns=namespace_name(lab, f"{letter}{n}"),
                ip4=ip4(n, _FIRST_POD + i),
                ip6=ip6(n, _FIRST_POD + i),
                enrolled=enroll and i == 0,
            )
            for n in numbers
            for i, letter in enumerate(_POD_LETTERS[:pods])
        ),
    )
