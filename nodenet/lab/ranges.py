"""Whether the lab's address ranges are free on this host.

The lab's traffic stays in its namespaces, so nothing would break at once; but a range that means
something else outside makes every output ambiguous and explanations wrong.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from nodenet.errors import NodenetError
from nodenet.lab.plan import LabPlan, ula_prefix

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_TABLE_MAIN: Final = 254
_RTN_UNICAST: Final = 1
#: What is proposed instead, in this order.
_CANDIDATES: Final = tuple(
    ipaddress.IPv4Network(f"{head}.{octet}.0.0/16")
    for head, octets in ((10, range(78, 100)), (172, range(20, 32)), (198, (18, 19)))
    for octet in octets
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeUse:
    """A network the host uses on a device.

    ``attached``: the host itself has an address in it, so every address of it may be a neighbour.
    Otherwise it is the destination of a route, which is in the way only inside the lab's range: a
    company's 10.0.0.0/8 behind a VPN leaves room for a lab.
    """

    network: IPNetwork
    dev: str
    attached: bool

    def in_the_way_of(self, wanted: IPNetwork) -> bool:
        """Whether a lab on ``wanted`` would be ambiguous."""
        if self.network.version != wanted.version or not self.network.prefixlen:
            return False
        if self.attached:
            return self.network.overlaps(wanted)
        return self.network.overlaps(wanted) and self.network.prefixlen >= wanted.prefixlen


class RangeInUse(NodenetError):
    """The host uses the lab's address range; the message proposes one that is free."""


def check_ranges(plan: LabPlan) -> None:
    """Raises RangeInUse when an address or a route of the host lies in the lab's ranges."""
    uses = list(host_ranges())
    wanted = [plan.net4] if plan.family.v4 else []
    clash = find_clash([*wanted, *([plan.net6] if plan.family.v6 else [])], uses)
    if clash is None:
        return
    network, use = clash
    free = next(
        (c for c in _CANDIDATES if find_clash((c, ula_prefix(c)), uses) is None), "A.B.0.0/16"
    )
    raise RangeInUse(
        f"address range {network} is in use on this host (dev {use.dev})", hint=f"use --net {free}"
    )


def find_clash(
    wanted: Iterable[IPNetwork], uses: Iterable[RangeUse]
) -> tuple[IPNetwork, RangeUse] | None:
    """The first wanted range that is in use, and by what."""
    uses = tuple(uses)
    return next(((w, u) for w in wanted for u in uses if u.in_the_way_of(w)), None)


def host_ranges() -> Iterator[RangeUse]:
    """The networks of this namespace's addresses, then the destinations of its routes."""
    from pyroute2 import IPRoute

    with IPRoute() as ip:
        names = {link["index"]: str(link.get("ifname")) for link in ip.get_links()}
        for address in ip.get_addr():
            net = ipaddress.ip_network(
                f"{address.get('local') or address.get('address')}/{address['prefixlen']}",
                strict=False,
            )
            if not (net.is_loopback or net.is_link_local):
                yield RangeUse(network=net, dev=names.get(address["index"], "?"), attached=True)
        for route in ip.get_routes(table=_TABLE_MAIN, type=_RTN_UNICAST):
            destination = route.get("dst")
            if destination:
                yield RangeUse(
                    network=ipaddress.ip_network(f"{destination}/{route['dst_len']}"),
                    dev=names.get(route.get("oif"), "?"),
                    attached=False,
                )
