"""The parity table as data: what the reference does, and what each backend does in its place.

P1..P34 are behaviours of the reference's in-pod rules (istio's CNI agent in ambient mode; m1..o3
name its iptables rules). X1..X3 are options that it does not have. docs/parity.md is written from
this table and the tests that carry its ids (`tests.root.parity.document`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRow:
    """One behaviour."""

    id: str
    required: str
    """What the reference does, or what an option promises."""
    source: str
    """Which of the reference's rules, or part of its agent, that comes from."""
    ebpf: str
    iptables: str
    differs: str | None = None
    """Why a backend does something else on purpose; None when both do as required."""


_AS_REQUIRED: Final = "as required"

ROWS: Final[tuple[ParityRow, ...]] = (
    ParityRow(
        id="P1",
        required="Every TCP connect of the pod to an address that is not its own or loopback, any "
        "port, reaches the proxy on 15001",
        source="o3",
        ebpf="as required, also where the pod has no route, and from a socket bound to 127.0.0.1 "
        "or to a device; no packet of a captured connection leaves the pod",
        iptables="needs a route to the destination (else ENETUNREACH, as without capture); a "
        "socket bound to a device hangs; one bound to 127.0.0.1 fails (IPv4) as without capture",
        differs="connect4 and connect6 run before the route look-up, netfilter after it: more "
        "connects reach the proxy",
    ),
    ParityRow(
        id="P2",
        required="The proxy learns the original destination, a service's address and not an "
        "endpoint's: SO_ORIGINAL_DST, level 0 for IPv4, 41 for IPv6",
        source="REDIRECT, conntrack",
        ebpf="as required, from socket storage; on inbound connections the option fails and the "
        "socket's own address is the destination",
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P3",
        required="The proxy sees the pod's address as peer, the app's getpeername shows the "
        "original destination",
        source="conntrack",
        ebpf="as required; getpeername of an MPTCP socket shows the proxy (pod address, port "
        "15001); DNS over TCP from an unbound socket comes from loopback",
        iptables=_AS_REQUIRED,
        differs="an MPTCP connect is hooked on its subflow, getpeername on the socket above it",
    ),
    ParityRow(
        id="P4",
        required="The proxy's sockets are never captured; they are known by the mark 0x539 "
        "under 0xfff",
        source="o3, d1, d2",
        ebpf="known by the proxy's cgroup; a marked socket of an app is captured, an impostor on "
        "15001 is not the proxy, and the proxy needs no mark",
        iptables="as required: an app that sets the mark escapes, an impostor on 15001 gets the "
        "connections, a proxy that does not mark its sockets catches itself",
        differs="CAP_NET_RAW, which containers have by default, is enough to set a mark",
    ),
    ParityRow(
        id="P5",
        required="127.0.0.0/8, ::1 and all of the pod's own addresses are not captured",
        source="o2, o3",
        ebpf="as required; 0.0.0.0 and :: count as loopback",
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P6",
        required="The pod's own service address is captured like any other",
        source="o3",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P7",
        required="Every inbound TCP connection but to 15008 lands on 15006, to open and closed "
        "ports alike; the proxy sees peer and destination",
        source="i1",
        ebpf="as required: sk_lookup, so nothing is translated; also in fragments and behind "
        "IPv6 extension headers",
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P8",
        required="Inbound connections to 15008 go to the listener there as they are",
        source="i1",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P9",
        required="Nobody outside reaches the proxy's outbound listener: what arrives for 15001, "
        "15006 or 15053 lands on 15006 with that destination, and the proxy rejects it",
        source="i1",
        ebpf="refused with a reset; also where inbound capture is off",
        iptables="as required; rule w1 does the same where inbound capture is off",
        differs="a reset needs no proxy that recognises itself, and cannot loop",
    ),
    ParityRow(
        id="P10",
        required="A closed port of the app looks open: the proxy accepts first",
        source="i1",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P11",
        required="What arrives over lo (the pod talking to itself, the proxy's leg to the app) is "
        "not captured",
        source="nat state, mark",
        ebpf="as required, told by addresses; an own address forged on the link reaches nobody",
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P12",
        required="Probes of the node's own processes reach the app; it sees 169.254.7.127 or "
        "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
        source="p1, p2, the node's SNAT",
        ebpf="the app sees the node's true address: the connection is known by its 4-tuple; the "
        "two addresses are let through as well, both ways",
        iptables="as required, with the node's SNAT rules (the caller's part, not an enrolment's)",
        differs="no translation on the node, so no conflict with the network plugin's rules",
    ),
    ParityRow(
        id="P13",
        required="What the node forwards is captured, also under the node's own address",
        source="socket-exists",
        ebpf="as required; processes of another node's namespace are captured too",
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P14",
        required="The exemption follows the pod: an address that another pod has now neither "
        "inherits nor loses anything",
        source="the set's comments",
        ebpf="as required: judged per namespace, by its cookie; two pods may have one address",
        iptables="as required: rules live in the namespace and name no address",
    ),
    ParityRow(
        id="P15",
        required="The proxy may dial the app from the remote client's address; the answers find "
        "back, a closed port refuses at once",
        source="m1, m2, table 100",
        ebpf="as required, without netfilter: connect gives the proxy's leg mark 0x111, whatever "
        "mark it had, and tcp_fwmark_accept hands it to the app's socket",
        iptables="as required with mark 0x539; with another one the answers are lost",
    ),
    ParityRow(
        id="P16",
        required="Packets with mark 0x111 are not captured; an app's socket with it gets nowhere",
        source="o1, policy rule",
        ebpf="an app's socket with that mark is captured like any other",
        iptables="as required: ENETUNREACH in IPv4, the pod's own app in IPv6",
        differs="as for P4: a mark is nobody's identity",
    ),
    ParityRow(
        id="P17",
        required="UDP to port 53 goes to 15053 on loopback, the answer seems to come from the "
        "server asked",
        source="d1",
        ebpf="as required, also without a route to the server; several queries at once to "
        "different servers on one unconnected socket: all answers show the last one",
        iptables=_AS_REQUIRED,
        differs="one original destination a socket, and no state a query; resolvers take an "
        "answer from any server they asked",
    ),
    ParityRow(
        id="P18",
        required="TCP to port 53 goes to 15053 with the original destination, also to 127.0.0.53 "
        "and own addresses",
        source="d2",
        ebpf="as required, but loopback and own addresses are left alone",
        iptables="as required, but what leaves by lo is left alone",
        differs="a resolver inside the pod keeps working over TCP as it does over UDP",
    ),
    ParityRow(
        id="P19",
        required="With DNS capture off TCP to port 53 goes to 15001, UDP is untouched",
        source="agent",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P20",
        required="The proxy's own queries do not collide with the app's on the same addresses and "
        "ports",
        source="z1, z2",
        ebpf="as required, without conntrack",
        iptables="as required, by a conntrack zone",
    ),
    ParityRow(
        id="P21",
        required="Other UDP, ICMP and SCTP are untouched in both directions",
        source="-",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P22",
        required="Ingress mode: inbound plaintext goes to the app, 15008 is served, outbound is "
        "captured, the proxy may still dial with the client's address",
        source="p1 and i1 absent",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P23",
        required="TCP that arrives on interfaces named by an annotation is taken for outbound "
        "(15001)",
        source="v1, v2",
        ebpf="not supported: such traffic is forwarded uncaptured; what it sends to the pod itself "
        "is inbound",
        iptables="not supported: taken for inbound (15006) with the foreign destination, which "
        "the proxy rejects",
        differs="no socket of the pod takes part, so neither connect nor sk_lookup sees it",
    ),
    ParityRow(
        id="P24",
        required="Enrolling resets connections that are older, unless conntrack knows them already",
        source="conntrack",
        ebpf="they go on uncaptured, or are reset, as --existing says",
        iptables="as required; with --existing reset they are ended from the socket side too",
        differs="nothing forces a reset, so it is the operator's choice",
    ),
    ParityRow(
        id="P25",
        required="Un-enrolling resets captured connections at once",
        source="rule removal",
        ebpf="they go on through the proxy, or are reset, as --existing says; the policy routes "
        "stay while a connection needs them",
        iptables=_AS_REQUIRED,
        differs="the proxy can drain",
    ),
    ParityRow(
        id="P26",
        required="Between the rules and the proxy's listeners connects are refused, never sent in "
        "clear",
        source="order of the agent's steps",
        ebpf="as required: refused by the kernel (row O7, I9)",
        iptables="as required: refused by the port nobody listens on",
    ),
    ParityRow(
        id="P27",
        required="The agent's crash or removal changes nothing for captured pods; what belongs to "
        "a namespace goes with it",
        source="rules live in the namespace",
        ebpf="as required: programs and maps are pinned; what a namespace that has gone left is "
        "reaped",
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P28",
        required="Without a proxy captured connections fail and are not passed",
        source="o3, i1",
        ebpf="as required, or passed with --on-proxy-down open",
        iptables="as required; open is refused as not supported",
        differs="only a program can ask whether somebody listens",
    ),
    ParityRow(
        id="P29",
        required="Capture follows the network namespace, whatever process or cgroup opens the "
        "socket",
        source="rules live in the namespace",
        ebpf="as required: programs at the root of the cgroups, gated by the namespace's cookie",
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P30",
        required="The host's namespace and host-network pods are never touched",
        source="agent",
        ebpf="as required: enrolling it is refused, the node's own connects pass",
        iptables="as required: likewise",
    ),
    ParityRow(
        id="P31",
        required="With IPv6 off, IPv4 works and nothing fails",
        source="agent",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P32",
        required="Applying again changes nothing; applying after a partial failure or damage "
        "makes it whole",
        source="agent",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="P33",
        required="The pod's own firewall rules are not touched",
        source="chains of its own",
        ebpf="as required; the namespace holds no rule of ours",
        iptables="as required: chains of our own names",
    ),
    ParityRow(
        id="P34",
        required="A flush of the node's firewall does not take the probes' exemption away",
        source="the reference fails here",
        ebpf=_AS_REQUIRED,
        iptables="fails: with the node's SNAT rules gone, probes are captured",
        differs="the node's part of iptables lives in the node's firewall",
    ),
    ParityRow(
        id="X1",
        required="Excluded ports (each direction) and destinations are left alone, DNS included",
        source="ours",
        ebpf=_AS_REQUIRED,
        iptables="as required (x1, x2)",
    ),
    ParityRow(
        id="X2",
        required="One direction alone can be captured",
        source="ours",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
    ParityRow(
        id="X3",
        required="Options change without a gap and concern one pod alone",
        source="ours",
        ebpf=_AS_REQUIRED,
        iptables=_AS_REQUIRED,
    ),
)

_KNOWN: Final = frozenset(row.id for row in ROWS)
RULES: Final = frozenset([f"O{n}" for n in range(1, 9)] + [f"I{n}" for n in range(1, 11)])


def parity(*rows: str, rules: tuple[str, ...]) -> pytest.MarkDecorator:
    """Says which rows of the table a test shows, and which rows of the decision order fire."""
    unknown = (set(rows) - _KNOWN) | (set(rules) - RULES)
    assert rows and not unknown, f"unknown rows: {unknown}"
    return pytest.mark.parity(rows=rows, rules=rules)
