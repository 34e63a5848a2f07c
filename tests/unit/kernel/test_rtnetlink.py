"""What goes over the wire for rules and routes, byte for byte as iproute2 sends it."""

from __future__ import annotations

import socket
import sys

from nodenet.kernel import rtnetlink
from nodenet.kernel.netlink import NETLINK_ROUTE, NetlinkSocket, attributes


def test_loopback_is_among_the_addresses() -> None:
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        found = rtnetlink.addresses(netlink)
    loopback = [a for a in found if str(a.interface) == "127.0.0.1/8"]
    assert [(a.ifindex, a.scope) for a in loopback] == [(1, rtnetlink.SCOPE_HOST)]


def test_a_rule_is_written_as_fib_rules_wants_it() -> None:
    rule = rtnetlink.MarkRule(
        family=socket.AF_INET6, priority=32764, mark=0x111, mask=0xFFF, table=100, protocol=112
    )
    message = rtnetlink.add_rule(rule)
    assert message.type == 32
    assert message.body[:12] == bytes((10, 0, 0, 0, 100, 0, 0, 1, 0, 0, 0, 0))
    numbers = {k: int.from_bytes(v, sys.byteorder) for k, v in attributes(message.body, 12).items()}
    assert numbers == {6: 32764, 10: 0x111, 16: 0xFFF, 15: 100, 21: 112}
    assert rtnetlink.delete_rule(rule).body == message.body


def test_a_route_is_local_by_lo_in_its_table() -> None:
    route = rtnetlink.LocalRoute(family=socket.AF_INET, table=1000, protocol=112)
    message = rtnetlink.replace_route(route)
    # a table that does not fit the header's byte stands only in the attribute
    assert message.body[:12] == bytes((2, 0, 0, 0, 0, 112, 254, 2, 0, 0, 0, 0))
    numbers = {k: int.from_bytes(v, sys.byteorder) for k, v in attributes(message.body, 12).items()}
    assert numbers == {15: 1000, 4: 1}
