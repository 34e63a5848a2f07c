"""Network namespaces, veth pairs, addresses and routes that somebody made and will remove.

A `Topology` is a set of namespaces under one name prefix. As a context manager it removes all of
them at the end, whatever happened, so a test never leaves anything behind::

    with Topology() as net:
        left, right = net.pair()
        left.run("curl", f"http://{right.ip4}:8080/")

Every link lives between two of its namespaces: nothing is ever made in the host's. Netlink
sockets are opened inside the namespace they work on; no command is run.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from nodenet.errors import NodenetError
from nodenet.kernel import netns, sysctl
from nodenet.kernel.netns import NetNs

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IPInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface

_IFA_F_NODAD: Final = 0x02
_SCOPE_LINK: Final = 253
#: RFC 4291 section 2.7.1: followed by the last three bytes of the address.
_SOLICITED_NODE: Final = bytes.fromhex("ff0200000000000000000001ff")
_JOIN_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.0005
#: Written as soon as a namespace exists, before it has a link: host settings are partly inherited
#: (net.core.devconf_inherit_init_net), and a lab must behave the same on every host.
_FRESH_SYSCTLS: Final = {
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    "net.ipv6.conf.all.disable_ipv6": 0,
    "net.ipv6.conf.default.disable_ipv6": 0,
    "net.ipv6.conf.default.accept_ra": 0,
    "net.ipv6.conf.default.accept_dad": 0,
}


class TopologyError(NodenetError):
    """The kernel refused an object; the message names the object and the namespace."""


class Namespace:
    """One network namespace with a name below /run/netns."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = netns.named_path(name)
        self.ip4: ipaddress.IPv4Address | None = None
        """First IPv4 address given through `Netlink.address`, for the caller's convenience."""
        self.ip6: ipaddress.IPv6Address | None = None

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is inside for the length of the block."""
        with NetNs.open(self.path) as ns, ns.entered():
            yield

    @contextlib.contextmanager
    def netlink(self) -> Iterator[Netlink]:
        """A netlink connection of this namespace, for a batch of changes."""
        from pyroute2 import IPRoute

        # The socket keeps the namespace it was opened in, so the thread can leave at once.
        with self.entered():
            connection = IPRoute()
        try:
            yield Netlink(self, connection)
        finally:
            connection.close()

    def sysctl(self, values: Mapping[str, int]) -> None:
        """Sets ``net.…`` values; one this kernel does not have (IPv6 off) is passed over."""
        with self.entered():
            for name, value in values.items():
                if sysctl.read_int(name) not in (None, value):
                    sysctl.write_int(name, value)

    def run(
        self, *argv: str, check: bool = True, timeout: float = 30.0, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside and returns its output as text."""
        with self.entered():  # a child is born in the namespace of the thread that forks
            return subprocess.run(
                argv, check=check, timeout=timeout, capture_output=True, text=True, **kwargs
            )

    def popen(self, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        """Starts a command inside; ending it is the caller's business."""
        with self.entered():
            return subprocess.Popen(argv, **kwargs)


class Netlink:
    """Changes to one namespace. Every failure is a TopologyError that says what was refused."""

    def __init__(self, namespace: Namespace, connection: Any) -> None:
        self.namespace = namespace
        self._ip = connection
        self._index: dict[str, int] = {}

    def veth(self, name: str, peer: Namespace, peer_name: str) -> None:
        """Makes a veth pair from here into ``peer`` and sets both ends up."""
        with self._naming(f"veth {name}"), peer_fd(peer) as fd:
            self._ip.link(
                "add", ifname=name, kind="veth", peer={"ifname": peer_name, "net_ns_fd": fd}
            )
        self.up(name)
        with peer.netlink() as other:
            other.up(peer_name)

    def up(self, *names: str) -> None:
        """Sets links up."""
        for name in names:
            with self._naming(f"link {name} up"):
                self._ip.link("set", index=self.index(name), state="up")

    def address(self, name: str, interface: IPInterface | str) -> None:
        """Adds an address; IPv6 is usable at once (no duplicate detection)."""
        value = ipaddress.ip_interface(interface)
        with self._naming(f"address {value} on {name}"):
            self._ip.addr(
                "add",
                index=self.index(name),
                address=str(value.ip),
                prefixlen=value.network.prefixlen,
                **({"flags": _IFA_F_NODAD} if value.version == 6 else {}),
            )
        if isinstance(value, ipaddress.IPv4Interface):
            self.namespace.ip4 = self.namespace.ip4 or value.ip
        else:
            self.namespace.ip6 = self.namespace.ip6 or value.ip
            if name != "lo":
                self._await_neighbours(value.ip)

    def route(
        self,
        destination: IPNetwork | str,
        *,
        dev: str,
        via: IPAddress | str | None = None,
        source: IPAddress | str | None = None,
    ) -> None:
        """Adds a route; without ``via`` the destination is on the link.

        ``source`` is the address this namespace's own connections use on it.
        """
        net = ipaddress.ip_network(destination)
        fields: dict[str, object] = {
            "family": 2 if net.version == 4 else 10,
            "dst": str(net),
            "oif": self.index(dev),
        }
        if via is not None:
            fields["gateway"] = str(via)
        elif net.version == 4:
            fields["scope"] = _SCOPE_LINK
        if source is not None:
            fields["prefsrc"] = str(source)
        with self._naming(f"route {net} dev {dev}"):
            self._ip.route("add", **fields)

    def delete_links(self) -> None:
        """Deletes every link but lo; the other ends of veth pairs go with them.

        At once, also when somebody still holds the namespace open after its name is gone.
        """
        from pyroute2.netlink.exceptions import NetlinkError

        for link in list(self._ip.get_links()):
            if link.get("ifname") != "lo":
                # gone with its other end meanwhile, or one of those every namespace is born with
                with contextlib.suppress(NetlinkError):
                    self._ip.link("del", index=link["index"])

    def index(self, name: str) -> int:
        """The interface index of a link of this namespace."""
        if name not in self._index:
            found = list(self._ip.link_lookup(ifname=name))
            if not found:
                raise TopologyError(f"no link {name}: namespace {self.namespace.name}")
            self._index[name] = int(found[0])
        return self._index[name]

    def _await_neighbours(self, address: ipaddress.IPv6Address) -> None:
        """Returns when the kernel listens for neighbour solicitations of the address.

        It joins the group a moment after the address is there, in a worker (addrconf_dad_begin).
        A solicitation that comes earlier is lost, and the first connection takes a second longer.
        """
        group = (_SOLICITED_NODE + address.packed[-3:]).hex()
        end = time.monotonic() + _JOIN_SECONDS
        with self.namespace.entered():
            while group not in Path("/proc/thread-self/net/igmp6").read_text():
                if time.monotonic() >= end:
                    return  # a link that is down; then nobody solicits either
                time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            yield
        except NetlinkError as error:
            raise TopologyError(
                f"cannot make {what}: namespace {self.namespace.name}: {error.args[-1]}"
            ) from error


class Topology:
    """Namespaces under one prefix, removed together by `close` or at the end of the block."""

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = f"nn-{secrets.token_hex(4)}-" if prefix is None else prefix
        self.namespaces: dict[str, Namespace] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def namespace(self, label: str) -> Namespace:
        """Makes the namespace ``<prefix><label>`` with lo up; NetNsExists when it is there."""
        made = Namespace(self.prefix + label)
        try:
            netns.create(made.name).close()
        except netns.NetNsExists:
            raise
        except BaseException:
            remove_namespace(made.name)
            raise
        self.namespaces[label] = made
        made.sysctl(_FRESH_SYSCTLS)
        with made.netlink() as link:
            link.up("lo")
        return made

    def pair(self, left: str = "l", right: str = "r") -> tuple[Namespace, Namespace]:
        """Two namespaces joined by a veth pair, ``eth0`` on both sides.

        Addresses: 10.99.0.1/24 and fd99::1/64 on the left, .2 and ::2 on the right.
        """
        sides = self.namespace(left), self.namespace(right)
        with sides[0].netlink() as link:
            link.veth("eth0", sides[1], "eth0")
        for number, side in enumerate(sides, start=1):
            with side.netlink() as link:
                link.address("eth0", f"10.99.0.{number}/24")
                link.address("eth0", f"fd99::{number}/64")
        return sides

    def close(self) -> None:
        """Removes every namespace made here with its links; twice is no harm."""
        for label in list(self.namespaces):
            remove_namespace(self.namespaces.pop(label).name)


def remove_namespace(name: str) -> None:
    """Removes a named namespace and its links; nothing happens when it is gone."""
    namespace = Namespace(name)
    if not os.path.lexists(namespace.path):
        return
    # A name without a namespace behind it (its maker was killed in between) has no links.
    with contextlib.suppress(netns.NotANetNs), namespace.netlink() as link:
        link.delete_links()
    with contextlib.suppress(netns.NetNsGone):
        netns.delete(name)


@contextlib.contextmanager
def peer_fd(namespace: Namespace) -> Iterator[int]:
    """A file descriptor of the namespace, as netlink takes it."""
    fd = os.open(namespace.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
