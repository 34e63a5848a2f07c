"""The iptables rules of one pod, as data.

Those of the reference (istio cni/pkg/iptables), in its order and under its ids, in chains of our
own names:

    m1 m2   mangle: the mark of the proxy's connection to the app comes back on the app's packets
    p1 p2   the address that node probes are translated to is left alone
    x1 x2   ours: excluded ports and destinations (RETURN, so the pod's own rules still apply)
    i1      inbound plaintext to 15006
    w1      ours, where i1 is absent: nobody outside reaches the proxy's other ports
    d1 d2   DNS to 15053, over UDP and TCP
    o1-o3   outbound to 15001, but not the proxy's own and what stays inside the pod
    z1 z2   raw: the proxy's DNS in a conntrack zone apart from the app's

One rule differs: the reference's d2 also takes TCP to port 53 of loopback and own addresses; here
d2 leaves alone what leaves by lo, as d1 does and as the ebpf backend does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from nodenet.abi import (
    DNS_PORT,
    HBONE_PORT,
    INBOUND_PORT,
    MARK,
    MARK_MASK,
    OUTBOUND_PORT,
    TRANSPARENT_MARK,
    IPAddress,
)
from nodenet.capture.records import ExcludedPort, PodRecord

Family = Literal[4, 6]
Table = Literal["mangle", "raw", "nat"]
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

PREROUTING: Final = "NODENET_PRERT"
OUTPUT: Final = "NODENET_OUTPUT"
POSTROUTING: Final = "NODENET_POSTRT"

#: Our chain to the built-in one that jumps to it.
POD_CHAINS: Final = {PREROUTING: "PREROUTING", OUTPUT: "OUTPUT"}
HOST_CHAINS: Final = {POSTROUTING: "POSTROUTING"}

#: What node probes are translated to (env HOST_PROBE_SNAT_IP, HOST_PROBE_SNAT_IPV6 of istio-cni).
PROBE_ADDRESS: Final[dict[Family, IPAddress]] = {
    4: ipaddress.IPv4Address("169.254.7.127"),
    6: ipaddress.IPv6Address("fd16:9254:7127:1337:ffff:ffff:ffff:ffff"),
}
_LOOPBACK: Final[dict[Family, str]] = {4: "127.0.0.1/32", 6: "::1/128"}
#: A rule's id stands in its comment, behind this.
COMMENT: Final = "nodenet:"

_PROXY: Final = f"-m mark --mark {MARK:#x}/{MARK_MASK:#x}"
_NOT_PROXY: Final = f"-m mark ! --mark {MARK:#x}/{MARK_MASK:#x}"
_TRANSPARENT: Final = f"{TRANSPARENT_MARK:#x}/{MARK_MASK:#x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """What of a pod is redirected: the part of an enrolment that the rules depend on."""

    direction: Literal["both", "out", "in"] = "both"
    dns: bool = False
    exclude_ports: tuple[ExcludedPort, ...] = ()
    exclude_cidrs: tuple[IPNetwork, ...] = ()
    mode: Literal["pod", "ingress"] = "pod"

    @classmethod
    def of(cls, record: PodRecord) -> Redirect:
        """The redirect an enrolment record asks for."""
        return cls(
            direction=record.direction,
            dns=record.dns,
            exclude_ports=record.exclude_ports,
            exclude_cidrs=tuple(ipaddress.ip_network(c) for c in record.exclude_cidrs),
            mode=record.mode,
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its id, where it stands, and its match and target as iptables-save prints them."""

    id: str
    table: Table
    chain: str
    match: str
    target: str

    @property
    def text(self) -> str:
        """The rule as a line of iptables-restore; the id is its comment."""
        comment = f"-m comment --comment {COMMENT}{self.id}"
        return " ".join(filter(None, (f"-A {self.chain}", self.match, comment, self.target)))


def pod_rules(family: Family, redirect: Redirect) -> tuple[Rule, ...]:
    """The rules of a pod for one address family, in the order they are evaluated."""
    rules = [
        Rule("m1", "mangle", PREROUTING, _PROXY, f"-j CONNMARK --set-xmark {_TRANSPARENT}"),
        Rule(
            "m2",
            "mangle",
            OUTPUT,
            f"-m connmark --mark {_TRANSPARENT}",
            "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff",
        ),
    ]
    if redirect.dns and redirect.direction != "in":
        rules += [
            Rule("z1", "raw", OUTPUT, f"-p udp -m udp --dport 53 {_PROXY}", "-j CT --zone 1"),
            Rule(
                "z2", "raw", PREROUTING, f"-p udp -m udp --sport 53 {_NOT_PROXY}", "-j CT --zone 1"
            ),
        ]
    rules += _inbound(family, redirect)
    if redirect.direction != "in":
        rules += _outbound(family, redirect)
    return tuple(rules)


def host_rules(family: Family, pods: Iterable[IPAddress]) -> tuple[Rule, ...]:
    """Node side of the reference: what a process of the node sends to a pod shows as a probe.

    Not part of an enrolment: the ebpf backend knows the node's own sockets without translation.
    """
    probe = PROBE_ADDRESS[family]
    return tuple(
        Rule(
            "h1",
            "nat",
            POSTROUTING,
            f"-d {ipaddress.ip_network(address)} -p tcp -m owner --socket-exists",
            f"-j SNAT --to-source {probe}",
        )
        for address in pods
        if address.version == family
    )


def _inbound(family: Family, redirect: Redirect) -> Iterator[Rule]:
    inside = f"! -d {_LOOPBACK[family]} -p tcp -m tcp"
    if redirect.direction == "out" or redirect.mode == "ingress":
        for port in (OUTBOUND_PORT, DNS_PORT):
            match = f"{inside} --dport {port} {_NOT_PROXY}"
            yield Rule("w1", "nat", PREROUTING, match, f"-j REDIRECT --to-ports {INBOUND_PORT}")
        return
    probe = ipaddress.ip_network(PROBE_ADDRESS[family])
    yield Rule("p1", "nat", PREROUTING, f"-s {probe} -p tcp", "-j ACCEPT")
    for port in _ports(redirect, "in"):
        yield Rule("x1", "nat", PREROUTING, f"-p tcp -m tcp --dport {port}", "-j RETURN")
    match = f"{inside} ! --dport {HBONE_PORT} {_NOT_PROXY}"
    yield Rule("i1", "nat", PREROUTING, match, f"-j REDIRECT --to-ports {INBOUND_PORT}")


def _outbound(family: Family, redirect: Redirect) -> Iterator[Rule]:
    probe = ipaddress.ip_network(PROBE_ADDRESS[family])
    yield Rule("p2", "nat", OUTPUT, f"-d {probe} -p tcp", "-j ACCEPT")
    for port in _ports(redirect, "out"):
        yield Rule("x2", "nat", OUTPUT, f"-p tcp -m tcp --dport {port}", "-j RETURN")
        if port == 53 and redirect.dns:
            yield Rule("x2", "nat", OUTPUT, "-p udp -m udp --dport 53", "-j RETURN")
    for cidr in sorted((c for c in redirect.exclude_cidrs if c.version == family), key=str):
        # iptables-save prints no destination for "everywhere"
        match = f"-d {cidr}" if cidr.prefixlen else ""
        yield Rule("x2", "nat", OUTPUT, match, "-j RETURN")
    if redirect.dns:
        to_dns = f"-j REDIRECT --to-ports {DNS_PORT}"
        for rule, protocol in (("d1", "udp"), ("d2", "tcp")):
            match = f"! -o lo -p {protocol} -m {protocol} --dport 53 {_NOT_PROXY}"
            yield Rule(rule, "nat", OUTPUT, match, to_dns)
    yield Rule("o1", "nat", OUTPUT, f"-p tcp -m mark --mark {_TRANSPARENT}", "-j ACCEPT")
    yield Rule("o2", "nat", OUTPUT, f"! -d {_LOOPBACK[family]} -o lo", "-j ACCEPT")
    match = f"! -d {_LOOPBACK[family]} -p tcp {_NOT_PROXY}"
    yield Rule("o3", "nat", OUTPUT, match, f"-j REDIRECT --to-ports {OUTBOUND_PORT}")


def _ports(redirect: Redirect, direction: Literal["in", "out"]) -> list[int]:
    return sorted(p.port for p in redirect.exclude_ports if p.dir == direction)
