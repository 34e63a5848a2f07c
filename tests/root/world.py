"""A pod, its node and the outside, with a recording process in each place that matters.

      outside ────────── node ────────── pod
      10.77.2.2/24       routes          10.77.1.2/24 (and .3)
      server             host            app, proxy (in the agent's cgroup)

Every connection between outside and pod is forwarded by the node, whose own processes are the
pod's probes. The pod has routes to the outside's networks and to a service range, no default
route. All of it lives in namespaces of its own and goes away with the block.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from nodenet.abi import IPAddress
from nodenet.capture import iptables
from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import Backend, PodRecord
from nodenet.capture.result import EnrolResult, UnenrolResult
from nodenet.capture.session import Capture, agent_cgroup_path, remove_instance
from nodenet.kernel.netns import NetNs
from nodenet.lab.topology import Namespace, Topology
from nodenet.paths import Instance
from tests.root.recording import LOOPBACKS, Recorder

Version = Literal[4, 6]
VERSIONS: Final[tuple[Version, ...]] = (4, 6)

NODE_ID: Final = 1
POD_NAME: Final = "t/pod"
#: Ports of the recorders: the app's and the outside server's.
APP_PORT: Final = 8080
SECOND_PORT: Final = 9093
DNS_PORT: Final = 53
UDP_PORT: Final = 5000


class Addresses(NamedTuple):
    """Who is who in one address family."""

    pod: IPAddress
    pod_second: IPAddress
    """Another address of the pod's interface."""
    node: IPAddress
    """The node's address on the pod's link."""
    outside: IPAddress
    outside_second: IPAddress
    outside_far: IPAddress
    """An address of the outside in a network of its own, for excluded CIDRs."""
    service: IPAddress
    """A virtual address: the pod has a route, nobody has the address."""
    metadata: IPAddress
    """A cloud's metadata service: link-local in IPv4; the pod has a route."""
    unrouted: IPAddress
    """Documentation address the pod has no route to."""
    probe: IPAddress
    """What the reference translates node probes to."""


ADDRESSES: Final[dict[Version, Addresses]] = {
    4: Addresses(
        *map(
            ip_address,
            (
                "10.77.1.2",
                "10.77.1.3",
                "10.77.1.1",
                "10.77.2.2",
                "10.77.2.3",
                "10.77.9.9",
                "10.96.0.20",
                "169.254.169.254",
                "203.0.113.7",
                "169.254.7.127",
            ),
        )
    ),
    6: Addresses(
        *map(
            ip_address,
            (
                "fd77:1::2",
                "fd77:1::3",
                "fd77:1::1",
                "fd77:2::2",
                "fd77:2::3",
                "fd77:9::9",
                "fd96::20",
                "fd00:ec2::254",
                "2001:db8::7",
                "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
            ),
        )
    ),
}
FAR_CIDRS: Final[dict[Version, str]] = {4: "10.77.9.0/24", 6: "fd77:9::/64"}
_ROUTES: Final[dict[Version, tuple[str, ...]]] = {
    4: ("10.77.2.0/24", "10.77.9.0/24", "10.96.0.0/16", "169.254.169.254/32", "169.254.7.127/32"),
    6: ("fd77:2::/64", "fd77:9::/64", "fd96::/64", "fd00:ec2::254/128", "fd16:9254:7127:1337::/64"),
}
_POD_NET: Final[dict[Version, str]] = {4: "10.77.1.0/24", 6: "fd77:1::/64"}
_PREFIX: Final[dict[Version, int]] = {4: 24, 6: 64}


def random_instance() -> Instance:
    """An instance nobody has."""
    return Instance(f"t{secrets.token_hex(4)}")


@contextlib.contextmanager
def loaded_capture(instance: Instance | None = None) -> Iterator[Capture]:
    """The capture, loaded on an instance of its own and removed at the end of the block."""
    chosen = instance or random_instance()
    try:
        with Capture.open_or_load(chosen) as capture:
            yield capture
    finally:
        remove_instance(chosen)
        # a proxy that was killed leaves its admin socket; the next one would take it over
        shutil.rmtree(chosen.run, ignore_errors=True)


def build(topology: Topology, versions: tuple[Version, ...] = VERSIONS) -> dict[str, Namespace]:
    """Makes ``pod``, ``node`` and ``outside`` with links, addresses and routes."""
    spaces = {label: topology.namespace(label) for label in ("pod", "node", "outside")}
    node = spaces["node"]
    if 6 not in versions:
        spaces["pod"].sysctl(
            {f"net.ipv6.conf.{name}.disable_ipv6": 1 for name in ("all", "default", "lo")}
        )
    node.sysctl({"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1})
    with node.netlink() as link:
        for label in ("pod", "outside"):
            link.veth(label, spaces[label], "eth0")
    for label in ("pod", "outside"):
        with node.netlink() as link:
            for version in versions:
                gateway = _gateway(label, version)
                link.address(label, f"{gateway}/{_PREFIX[version]}")
            link.up(label)
        with spaces[label].netlink() as link:
            for version in versions:
                # the kernel prefers the first IPv4 and the last IPv6 address: be it the main one
                for address in _own(label, version)[:: 1 if version == 4 else -1]:
                    link.address("eth0", f"{address}/{_PREFIX[version]}")
            link.up("eth0")
            for version in versions:
                networks = _ROUTES[version] if label == "pod" else (_POD_NET[version],)
                for network in networks:
                    link.route(network, dev="eth0", via=_gateway(label, version))
    with node.netlink() as link:
        for version in versions:
            link.route(FAR_CIDRS[version], dev="outside", via=ADDRESSES[version].outside)
            link.address("lo", f"{ADDRESSES[version].probe}/{32 if version == 4 else 128}")
    with spaces["outside"].netlink() as link:
        for version in versions:
            link.address("lo", f"{ADDRESSES[version].outside_far}/{32 if version == 4 else 128}")
    return spaces


def _own(label: str, version: Version) -> tuple[IPAddress, ...]:
    a = ADDRESSES[version]
    return (a.pod, a.pod_second) if label == "pod" else (a.outside, a.outside_second)


def _gateway(label: str, version: Version) -> IPAddress:
    """The node's side of a link: the first address of the network."""
    own = _own(label, version)[0]
    return own - (int(own) & 0xF) + 1


class World:
    """The whole scene on one backend, the pod enrolled. A context manager.

    Without 6 in ``versions`` IPv6 is switched off in the pod, on lo too.
    """

    def __init__(self, backend: Backend, versions: tuple[Version, ...] = VERSIONS) -> None:
        self.backend = backend
        self.versions = versions
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _build(self, stack: contextlib.ExitStack) -> None:
        self.capture = stack.enter_context(loaded_capture())
        self.topology = stack.enter_context(Topology())
        spaces = build(self.topology, self.versions)
        self.pod, self.node, self.outside = (spaces[n] for n in ("pod", "node", "outside"))
        self.capture.add_host(self.node.path, NODE_ID)
        self.cgroup = agent_cgroup_path(self.capture.instance)
        self.app = stack.enter_context(Recorder("app", self.pod))
        self.server = stack.enter_context(Recorder("server", self.outside))
        self.host = stack.enter_context(Recorder("host", self.node))
        self.proxy = stack.enter_context(Recorder("proxy", self.pod, self.cgroup))
        for recorder in (self.app, self.server):
            for port in (APP_PORT, SECOND_PORT):
                recorder.listen(port)
        self.host.listen(APP_PORT)
        self.server.listen(DNS_PORT)
        for version in self.versions:
            a = ADDRESSES[version]
            # bound, so that an answer has the address that was asked
            for address in (a.outside, a.outside_second, a.outside_far):
                self.server.listen(DNS_PORT, str(address), udp=True)
                self.server.listen(UDP_PORT, str(address), udp=True)
            self.app.listen(UDP_PORT, str(a.pod), udp=True)
        if self.backend == "iptables":
            # the reference's way to know the node's own processes; the ebpf backend needs none
            with NetNs.open(self.node.path) as node:
                pods = [ADDRESSES[v].pod for v in self.versions]
                iptables.apply_host_probe_rules(node, pods)
        # the proxy's listeners register only in a namespace that is being enrolled
        self.record = self.enroll().record
        self.proxy.loopbacks = LOOPBACKS[: len(self.versions)]
        self.proxy.listen_as_proxy()

    @property
    def netns_cookie(self) -> int:
        """The pod's."""
        return self.record.netns_cookie

    def enroll(self, **options: Any) -> EnrolResult:
        """Enrols the pod with these `EnrolOptions`, or changes them; all others are defaults."""
        chosen = EnrolOptions(**{"backend": self.backend, **options})
        result = self.capture.enroll(self.pod.path, name=POD_NAME, node_id=NODE_ID, options=chosen)
        self.record = result.record
        return result

    def unenroll(self, existing: Literal["keep", "reset"] = "keep") -> UnenrolResult:
        """Takes the pod out."""
        return self.capture.unenroll(self.netns_cookie, existing=existing)

    def enrolled(self) -> PodRecord | None:
        """The pod's enrolment as it is now."""
        return self.capture.record(self.netns_cookie)
