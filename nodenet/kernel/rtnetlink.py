"""Addresses, policy rules and routes of one namespace by raw rtnetlink.

Every function takes a `NetlinkSocket` of NETLINK_ROUTE and speaks of the namespace that socket was
made in. Only what the capture needs: reading addresses, and rules and local routes by mark.
Layouts: linux/rtnetlink.h, linux/if_addr.h, linux/fib_rules.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from typing import Final

from nodenet.kernel.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Message,
    NetlinkSocket,
    attribute,
    attributes,
    u32,
)

AF_INET: Final = int(socket.AF_INET)
AF_INET6: Final = int(socket.AF_INET6)
#: The kernel gives every namespace's loopback this index.
LOOPBACK_IFINDEX: Final = 1

SCOPE_GLOBAL: Final = 0
SCOPE_LINK: Final = 253
SCOPE_HOST: Final = 254

IFA_F_DADFAILED: Final = 0x08
IFA_F_TENTATIVE: Final = 0x40

RTM_NEWROUTE: Final = 24
RTM_DELROUTE: Final = 25
RTM_GETROUTE: Final = 26
RTM_GETADDR: Final = 22
RTM_NEWRULE: Final = 32
RTM_DELRULE: Final = 33
RTM_GETRULE: Final = 34

_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_IFA_FLAGS: Final = 8
_RTA_OIF: Final = 4
_RTA_TABLE: Final = 15
_RTN_LOCAL: Final = 2
_FRA_PRIORITY: Final = 6
_FRA_FWMARK: Final = 10
_FRA_TABLE: Final = 15
_FRA_FWMASK: Final = 16
_FRA_PROTOCOL: Final = 21
_FR_ACT_TO_TBL: Final = 1

# family, prefix length, flags, scope, ifindex
_IFADDRMSG: Final = struct.Struct("=BBBBI")
# family, dst_len, src_len, tos, table, protocol, scope, type, flags
_RTMSG: Final = struct.Struct("=BBBBBBBBI")
# family, dst_len, src_len, tos, table, res1, res2, action, flags
_RULEHDR: Final = struct.Struct("=BBBBBBBBI")
_U32: Final = struct.Struct("=I")

IPInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of an interface; ``scope`` and ``flags`` are RT_SCOPE_* and IFA_F_*."""

    ifindex: int
    interface: IPInterface
    scope: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRule:
    """``ip rule fwmark MARK/MASK pref PRIORITY lookup TABLE proto PROTOCOL``."""

    family: int
    priority: int
    mark: int
    mask: int
    table: int
    protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRoute:
    """``ip route local default dev lo table TABLE proto PROTOCOL``."""

    family: int
    table: int
    protocol: int


def addresses(netlink: NetlinkSocket) -> list[InterfaceAddress]:
    """Every address of the namespace, IPv4 first, in the kernel's order."""
    found: list[InterfaceAddress] = []
    for body in netlink.dump(RTM_GETADDR, _IFADDRMSG.pack(0, 0, 0, 0, 0)):
        family, prefix, flags, scope, index = _IFADDRMSG.unpack_from(body)
        attrs = attributes(body, _IFADDRMSG.size)
        # On a point-to-point link ADDRESS is the other end and LOCAL is ours.
        raw = attrs.get(_IFA_LOCAL) or attrs.get(_IFA_ADDRESS)
        if raw is None or family not in (AF_INET, AF_INET6):
            continue
        if _IFA_FLAGS in attrs:
            flags = _U32.unpack(attrs[_IFA_FLAGS])[0]
        interface: IPInterface = (
            ipaddress.IPv4Interface((raw, prefix))
            if family == AF_INET
            else ipaddress.IPv6Interface((raw, prefix))
        )
        found.append(InterfaceAddress(index, interface, scope, flags))
    return found


def mark_rules(netlink: NetlinkSocket, family: int) -> list[MarkRule]:
    """The namespace's rules that look up a table by packet mark."""
    found: list[MarkRule] = []
    for body in netlink.dump(RTM_GETRULE, _RULEHDR.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)):
        header = _RULEHDR.unpack_from(body)
        attrs = attributes(body, _RULEHDR.size)
        if header[0] != family or header[7] != _FR_ACT_TO_TBL or _FRA_FWMARK not in attrs:
            continue
        found.append(
            MarkRule(
                family=family,
                priority=_u32(attrs, _FRA_PRIORITY, 0),
                mark=_u32(attrs, _FRA_FWMARK, 0),
                mask=_u32(attrs, _FRA_FWMASK, 0xFFFFFFFF),
                table=_u32(attrs, _FRA_TABLE, header[4]),
                protocol=attrs.get(_FRA_PROTOCOL, b"\0")[0],
            )
        )
    return found


def local_routes(netlink: NetlinkSocket, family: int, table: int) -> list[LocalRoute]:
    """The local default routes by lo in that table. ``netlink`` must be strict."""
    found: list[LocalRoute] = []
    header = _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
    try:
        bodies = netlink.dump(RTM_GETROUTE, header + attribute(_RTA_TABLE, u32(table)))
    except FileNotFoundError:  # a table exists from its first route on
        return found
    for body in bodies:
        route = _RTMSG.unpack_from(body)
        attrs = attributes(body, _RTMSG.size)
        if (route[0], route[1], route[7]) != (family, 0, _RTN_LOCAL):
            continue
        if _u32(attrs, _RTA_OIF, 0) != LOOPBACK_IFINDEX or _u32(attrs, _RTA_TABLE, 0) != table:
            continue
        found.append(LocalRoute(family=family, table=table, protocol=route[5]))
    return found


def add_rule(rule: MarkRule) -> Message:
    """Makes it; refused with EEXIST when there is an equal one."""
    return Message(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, _rule_body(rule))


def delete_rule(rule: MarkRule) -> Message:
    """Removes it; refused with ENOENT when there is none with this protocol."""
    return Message(RTM_DELRULE, 0, _rule_body(rule))


def replace_route(route: LocalRoute) -> Message:
    """Makes it, or changes the one that is there."""
    return Message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, _route_body(route))


def delete_route(route: LocalRoute) -> Message:
    """Removes it; refused with ESRCH when there is none."""
    return Message(RTM_DELROUTE, 0, _route_body(route))


def _rule_body(rule: MarkRule) -> bytes:
    table = rule.table if rule.table < 256 else 0
    return b"".join(
        (
            _RULEHDR.pack(rule.family, 0, 0, 0, table, 0, 0, _FR_ACT_TO_TBL, 0),
            attribute(_FRA_PRIORITY, u32(rule.priority)),
            attribute(_FRA_FWMARK, u32(rule.mark)),
            attribute(_FRA_FWMASK, u32(rule.mask)),
            attribute(_FRA_TABLE, u32(rule.table)),
            attribute(_FRA_PROTOCOL, bytes((rule.protocol,))),
        )
    )


def _route_body(route: LocalRoute) -> bytes:
    table = route.table if route.table < 256 else 0
    header = (route.family, 0, 0, 0, table, route.protocol, SCOPE_HOST, _RTN_LOCAL, 0)
    return b"".join(
        (
            _RTMSG.pack(*header),
            attribute(_RTA_TABLE, u32(route.table)),
            attribute(_RTA_OIF, u32(LOOPBACK_IFINDEX)),
        )
    )


def _u32(attrs: dict[int, bytes], kind: int, default: int) -> int:
    raw = attrs.get(kind)
    return default if raw is None else int(_U32.unpack(raw)[0])
