"""Routing inside a pod's namespace that lets the proxy dial the app as the remote client.

The proxy binds the client's address and marks the socket 0x111. The app's answer must come back to
the proxy and not leave by the pod's interface: packets with that mark are routed to lo by a rule
and a table of their own, and ``net.ipv4.tcp_fwmark_accept`` makes the accepted socket inherit the
mark, so neither netfilter nor conntrack has a part. ``fwmark_reflect`` does the same for the reset
of a closed port. Under iptables the mark comes from connmark rules instead, and the sysctls stay.

Which sysctls were changed is kept in the rule itself, as its protocol number: it lives and dies
with the namespace, so a restarted agent, or another one, can undo exactly what was done.

Sources: istio cni/pkg/iptables (rule, table, priority); include/net/inet_sock.h (fwmark).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from nodenet.abi import MARK_MASK, TRANSPARENT_MARK
from nodenet.errors import NodenetError, NotPermitted
from nodenet.kernel.netlink import NETLINK_ROUTE, Message, NetlinkSocket, Refused
from nodenet.kernel.netns import NetNs
from nodenet.kernel.rtnetlink import (
    AF_INET,
    AF_INET6,
    LocalRoute,
    MarkRule,
    add_rule,
    delete_route,
    delete_rule,
    local_routes,
    mark_rules,
    replace_route,
)
from nodenet.kernel.sysctl import Sysctls

TABLE: Final = 100
PRIORITY: Final = 32764
#: Protocol number of our routes, and of our rules plus a `_Changed`; nobody has registered these
#: (iproute2 etc/iproute2/rt_protos).
PROTOCOL: Final = 112


class _Changed(IntFlag):
    """The sysctls that were 0 before and are 1 because of us."""

    FWMARK_ACCEPT = 1
    REFLECT4 = 2
    REFLECT6 = 4


_SYSCTLS: Final = {
    _Changed.FWMARK_ACCEPT: "net.ipv4.tcp_fwmark_accept",
    _Changed.REFLECT4: "net.ipv4.fwmark_reflect",
    _Changed.REFLECT6: "net.ipv6.fwmark_reflect",
}
_ALL: Final = _Changed.FWMARK_ACCEPT | _Changed.REFLECT4 | _Changed.REFLECT6
_NONE: Final = _Changed(0)


class PodRoutesFailed(NodenetError):
    """The namespace did not take a rule or a route."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look into the namespace found."""

    families: tuple[int, ...]
    rules: tuple[MarkRule, ...]
    """Rules equal to ours in all but the protocol."""
    routes: tuple[LocalRoute, ...]
    sysctls: dict[_Changed, int]
    """Values of those that exist."""

    @property
    def changed(self) -> _Changed:
        """The sysctls an earlier `install` set."""
        changed = _NONE
        for rule in self.rules:
            if _is_ours(rule.protocol):
                changed |= _Changed(rule.protocol - PROTOCOL)
        return changed


def install(ns: NetNs, *, fwmark_accept: bool = True) -> None:
    """Sets it up; what is there already stays. Needs lo up.

    ``fwmark_accept`` False is for the iptables backend: rule and routes only, and sysctls that an
    earlier installation set go back to 0. PodRoutesFailed, NotPermitted; `remove` undoes what was
    done before a failure.
    """
    with ns.open_netlink(NETLINK_ROUTE) as netlink, ns.sysctls() as sysctls:
        seen = _look(netlink, sysctls, _families(sysctls))
        wanted = _NONE
        if fwmark_accept:
            for flag, value in seen.sysctls.items():
                if value == 0 or flag & seen.changed:
                    wanted |= flag
        # A rule that tells what is changed is there before the first change and after the last:
        # killed at any point, the next call or `remove` knows what to undo.
        new: list[Message] = []
        stale: list[Message] = []
        for family in seen.families:
            rule = _rule(family, PROTOCOL + wanted)
            if rule not in seen.rules:
                new.append(add_rule(rule))
            stale += [
                delete_rule(r)
                for r in seen.rules
                if r.family == family and r != rule and _is_ours(r.protocol)
            ]
            if not any(r.family == family for r in seen.routes):
                new.append(replace_route(_route(family)))
        _send(netlink, ns, new, harmless={errno.EEXIST})
        for flag in wanted | seen.changed:
            value = 1 if flag & wanted else 0
            if seen.sysctls.get(flag) == 1 - value:
                sysctls.write_int(_SYSCTLS[flag], value)
        _send(netlink, ns, stale, harmless={errno.ENOENT})


def remove(ns: NetNs) -> None:
    """Undoes `install`; nothing happens when there is nothing of ours."""
    with ns.open_netlink(NETLINK_ROUTE) as netlink, ns.sysctls() as sysctls:
        # both: IPv6 may have been switched off since
        seen = _look(netlink, sysctls, (AF_INET, AF_INET6))
        for flag in seen.changed:
            if seen.sysctls.get(flag) == 1:
                sysctls.write_int(_SYSCTLS[flag], 0)
        # The rule goes last, for the same reason as it comes first.
        messages = [delete_route(r) for r in seen.routes if _is_ours(r.protocol)]
        messages += [delete_rule(r) for r in seen.rules if _is_ours(r.protocol)]
        _send(netlink, ns, messages, harmless={errno.ENOENT, errno.ESRCH})


def check(ns: NetNs, *, fwmark_accept: bool = True) -> list[str]:
    """What is not as `install` leaves it, one sentence each; empty when all is well."""
    with ns.open_netlink(NETLINK_ROUTE) as netlink, ns.sysctls() as sysctls:
        seen = _look(netlink, sysctls, _families(sysctls))
    problems: list[str] = []
    for family in seen.families:
        version = 4 if family == AF_INET else 6
        ip = f"ip -{version}"
        if not any(r.family == family for r in seen.rules):
            mark = f"{TRANSPARENT_MARK:#x}/{MARK_MASK:#x}"
            problems.append(f"missing: {ip} rule fwmark {mark} pref {PRIORITY} lookup {TABLE}")
        if not any(r.family == family for r in seen.routes):
            problems.append(f"missing: {ip} route local default dev lo table {TABLE}")
    if fwmark_accept:
        problems += [f"{_SYSCTLS[f]} is 0, not 1" for f, value in seen.sysctls.items() if not value]
    elif seen.changed & _Changed.FWMARK_ACCEPT:
        problems.append(f"{_SYSCTLS[_Changed.FWMARK_ACCEPT]} is still set from the ebpf backend")
    return problems


def _families(sysctls: Sysctls) -> tuple[int, ...]:
    """IPv6 only where lo has it: elsewhere a route to lo is refused."""
    return (AF_INET, AF_INET6) if sysctls.ipv6_on_loopback() else (AF_INET,)


def _look(netlink: NetlinkSocket, sysctls: Sysctls, families: tuple[int, ...]) -> _Seen:
    netlink.strict()
    rules: list[MarkRule] = []
    routes: list[LocalRoute] = []
    for family in families:
        rules += [r for r in mark_rules(netlink, family) if _rule(family, r.protocol) == r]
        routes += local_routes(netlink, family, TABLE)
    values = {
        flag: value
        for flag, name in _SYSCTLS.items()
        if (value := sysctls.read_int(name)) is not None
    }
    if AF_INET6 not in families:
        values.pop(_Changed.REFLECT6, None)
    return _Seen(families, tuple(rules), tuple(routes), values)


def _send(netlink: NetlinkSocket, ns: NetNs, messages: list[Message], harmless: set[int]) -> None:
    for answer in netlink.request(*messages) if messages else ():
        if answer is not None and answer.errno not in harmless:
            raise _failure(ns, answer)


def _failure(ns: NetNs, answer: Refused) -> NodenetError:
    if answer.errno in (errno.EPERM, errno.EACCES):
        return NotPermitted(f"routes of {ns.path}: not permitted", hint="needs CAP_NET_ADMIN")
    hint = None
    if answer.errno == errno.ENETDOWN:
        hint = "its loopback is down: ip link set lo up"
    return PodRoutesFailed(f"routes of {ns.path}: {answer}", hint=hint)


def _is_ours(protocol: int) -> bool:
    return PROTOCOL <= protocol <= PROTOCOL + _ALL


def _rule(family: int, protocol: int) -> MarkRule:
    return MarkRule(
        family=family,
        priority=PRIORITY,
        mark=TRANSPARENT_MARK,
        mask=MARK_MASK,
        table=TABLE,
        protocol=protocol,
    )


def _route(family: int) -> LocalRoute:
    return LocalRoute(family=family, table=TABLE, protocol=PROTOCOL)
