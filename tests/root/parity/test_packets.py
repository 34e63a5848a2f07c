"""The capture at the level of packets: what leaves the pod, and what odd packets do to it."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from nodenet import abi
from nodenet.abi import Direction, IPAddress
from nodenet.capture.options import parse_cidrs, parse_excluded_ports
from tests.root.dialling import (
    TIMEOUT_SECONDS,
    connected,
    dial,
    is_alive,
    is_ended,
    open_socket,
)
from tests.root.parity.cases import Case
from tests.root.parity.rows import parity
from tests.root.parity.wire import ACK, RST, SYN, Packet, Shape, Wire, as_it_is
from tests.root.world import APP_PORT, SECOND_PORT

pytestmark = [pytest.mark.root, pytest.mark.bpf]

CLOSED_PORT = 81
#: In the outside's network; nobody has it, so nobody interferes.
GHOSTS: dict[int, IPAddress] = {4: ip_address("10.77.2.77"), 6: ip_address("fd77:2::77")}
EXCLUDED = {"exclude_ports": parse_excluded_ports([f"{SECOND_PORT}", "in:82"])}


@pytest.fixture
def wire(case: Case) -> Iterator[Wire]:
    with Wire(case) as made:
        yield made


def ghost(case: Case) -> IPAddress:
    return GHOSTS[case.family.version]


# -- what leaves


def to_the_outside(case: Case, wire: Wire, port: int) -> list[Packet]:
    hosts = (case.a.outside, case.a.unrouted, case.a.outside_far)
    return [p for p in wire.left_the_pod() for h in hosts if wire.is_tcp(p, h, port)]


@parity("P1", rules=("O8",))
def test_a_captured_connection_leaves_no_packet(case: Case, wire: Wire) -> None:
    wire.clear()
    with connected(case.world.pod, case.a.outside, APP_PORT) as (sock, greeting):
        assert greeting.by == "proxy"
        assert is_alive(sock)
    assert to_the_outside(case, wire, APP_PORT) == []


@parity("X1", rules=("O6",))
def test_an_excluded_connection_leaves_its_packets(case: Case, wire: Wire) -> None:
    case.world.enroll(**EXCLUDED)
    wire.clear()
    seen = case.connect(case.a.outside, SECOND_PORT)
    assert seen.verdict == "bypassed O6"
    flags = [int(wire.segment(p).flags) for p in to_the_outside(case, wire, SECOND_PORT)]
    assert flags[0] & (SYN | ACK) == SYN
    assert flags[1] & (SYN | ACK) == ACK


@parity("P26", "P28", rules=("O7",))
def test_a_refused_connection_leaves_no_packet(case: Case, wire: Wire) -> None:
    case.world.proxy.unlisten_as_proxy()
    try:
        wire.clear()
        seen = dial(case.world.pod, case.a.outside, APP_PORT)
        assert seen.error == errno.ECONNREFUSED
        assert to_the_outside(case, wire, APP_PORT) == []
    finally:
        case.world.proxy.listen_as_proxy()


@parity("P17", rules=("O8",))
def test_a_captured_query_leaves_no_packet(case: Case, wire: Wire) -> None:
    case.world.enroll(dns=True)
    wire.clear()
    assert case.query(case.a.outside).verdict == "captured O8"
    own = bytes(case.a.outside.packed)
    assert not [p for p in wire.left_the_pod() if own in bytes(p)]


# -- what arrives


def plain(case: Case) -> Shape:
    return as_it_is


def fragments(case: Case) -> Shape:
    """In pieces; over IPv4 so small that the ports stand in the first and the flags in another."""

    def cut(packet: Packet) -> list[Packet]:
        from scapy.layers.inet import fragment
        from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment

        if case.family.version == 4:
            pieces: list[Packet] = fragment(packet, fragsize=8)
            assert len(pieces) > 3
            return pieces
        # the first fragment must hold the whole TCP header (RFC 8200 section 4.5)
        whole = IPv6(bytes(packet))
        body, head = bytes(whole.payload), whole.copy()
        head.remove_payload()
        del head.plen, head.nh
        size = len(body) // 8 * 8 - 8
        assert size >= 20
        return [
            head / IPv6ExtHdrFragment(id=7, nh=6, m=1, offset=0) / body[:size],
            head / IPv6ExtHdrFragment(id=7, nh=6, m=0, offset=size // 8) / body[size:],
        ]

    return cut


def extended(case: Case) -> Shape:
    """With IPv4 options or IPv6 extension headers before TCP."""

    def extend(packet: Packet) -> list[Packet]:
        from scapy.layers.inet import IPOption_NOP, IPOption_RR
        from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, PadN

        if case.family.version == 4:
            packet.options = [IPOption_NOP(), IPOption_RR(length=7, routers=["0.0.0.0"])]
            return [packet]
        head, tcp = packet.copy(), packet.payload
        head.remove_payload()
        options = [PadN(optdata=b"\0" * 4)]
        return [
            head / IPv6ExtHdrHopByHop(options=options) / IPv6ExtHdrDestOpt(options=options) / tcp
        ]

    return extend


SHAPES = [plain, fragments, extended]
#: Port, and what becomes of a SYN to it: (ebpf, iptables, who answers).
PORTS = {
    "open": (APP_PORT, "captured I10", "captured I10", "proxy"),
    "closed": (CLOSED_PORT, "captured I10", "captured I10", "proxy"),
    "excluded": (SECOND_PORT, "bypassed I6", "bypassed I6", "app"),
    "hbone": (abi.HBONE_PORT, "bypassed I4", "bypassed I4", "proxy"),
    "own": (abi.OUTBOUND_PORT, "refused I5", "captured I10", "proxy"),
    "own dns": (abi.DNS_PORT, "refused I5", "captured I10", "proxy"),
}


@parity("P7", "P8", "P9", "P10", rules=("I4", "I5", "I6", "I10"))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("which", PORTS)
def test_a_syn_in_any_shape(case: Case, wire: Wire, shape: object, which: str) -> None:
    assert callable(shape)
    case.world.enroll(**EXCLUDED)
    port, *verdicts, answers = PORTS[which]
    seen = case.observe(
        Direction.IN,
        lambda: wire.connect(
            ghost(case), port, shape(case), options=[("MSS", 1400)], payload=b"early data here"
        ),
        case.foretold_inbound(ghost(case), case.a.pod, port),
    )
    assert seen.verdict == verdicts[not case.ebpf]
    if seen.result != "refused":
        assert seen.greeting.by == answers
        assert seen.greeting.peer == seen.dialled.local
        assert seen.greeting.destination == (case.a.pod, port)


@parity("P7", rules=("I10",))
def test_a_syn_with_explicit_congestion_notification(case: Case, wire: Wire) -> None:
    seen = case.observe(
        Direction.IN,
        lambda: wire.connect(ghost(case), APP_PORT, flags=0xC0),
        case.foretold_inbound(ghost(case), case.a.pod, APP_PORT),
    )
    assert seen.verdict == "captured I10"


@parity("X1", rules=("I6",))
def test_a_closed_excluded_port_answers_with_a_reset(case: Case, wire: Wire) -> None:
    case.world.enroll(**EXCLUDED)
    assert case.foretold_inbound(ghost(case), case.a.pod, 82) == "bypassed I6"
    assert wire.connect(ghost(case), 82).error == errno.ECONNREFUSED


@parity("P7", "P9", rules=("I10",))
@pytest.mark.parametrize("port", [APP_PORT, CLOSED_PORT, abi.OUTBOUND_PORT])
def test_a_stray_segment_is_answered_with_a_reset(case: Case, wire: Wire, port: int) -> None:
    source, sport = ghost(case), 4242
    wire.clear()
    wire.send(wire.tcp(source, sport, port, ACK, seq=1, ack=77))
    answer = wire.first(lambda p: wire.is_tcp(p, source, sport))
    assert answer is not None
    assert int(wire.segment(answer).flags) & RST
    assert wire.segment(answer).seq == 77
    assert case.world.proxy.accepted() == []


@parity("P9", "P11", rules=("I2",))
def test_a_forged_own_address_reaches_nobody(case: Case, wire: Wire) -> None:
    # rule I2 trusts the pod's own addresses; from the wire they lead to no connection
    for port in (APP_PORT, abi.OUTBOUND_PORT):
        wire.clear()
        wire.send(wire.tcp(case.a.pod, 4242, port, SYN, seq=1))
        assert not [p for p in wire.left_the_pod() if wire.is_tcp(p, case.a.pod, 4242)]
    assert case.world.proxy.accepted() == []
    assert case.world.app.accepted() == []


# -- resets, and both opening at once


@parity("P7", rules=("I10",))
def test_only_the_right_reset_ends_a_captured_connection(case: Case, wire: Wire) -> None:
    with connected(case.world.outside, case.a.pod, APP_PORT) as (client, greeting):
        assert greeting.by == "proxy"
        host, port = greeting.peer

        def next_byte() -> int:
            """What the proxy's side expects, as it says in its last acknowledgement."""
            wire.clear()
            assert is_alive(client)
            mine = [p for p in wire.left_the_pod() if wire.is_tcp(p, host, port)]
            return int(wire.segment(mine[-1]).ack)

        for off in (-1_000_000, 2**30):
            number = (next_byte() + off) % 2**32
            wire.send(wire.tcp(host, port, APP_PORT, RST, seq=number))
            assert is_alive(client), off
        wire.send(wire.tcp(host, port, APP_PORT, RST, seq=next_byte()))
        # the proxy's side is gone; the client learns it when it speaks
        client.send(b"gone?")
        assert is_ended(client)


@parity("P1", rules=("O8",))
def test_forged_packets_of_the_destination_do_not_reach_a_captured_connection(
    case: Case, wire: Wire
) -> None:
    with connected(case.world.pod, case.a.outside, APP_PORT) as (sock, greeting):
        assert greeting.by == "proxy"
        port = sock.getsockname()[1]
        for flags in (RST, RST | ACK, SYN | ACK):
            wire.send(wire.tcp(case.a.outside, APP_PORT, port, flags, seq=1, ack=1))
        assert is_alive(sock)


@parity("X1", rules=("O6",))
def test_both_sides_open_at_once(case: Case, wire: Wire) -> None:
    # only uncaptured: a captured connect sends no SYN that another one could cross
    case.world.enroll(exclude_cidrs=parse_cidrs([str(ghost(case))]))
    with open_socket(case.world.pod, ghost(case)) as sock:
        sock.setblocking(False)
        sock.bind((str(case.a.pod), 0))
        own = sock.getsockname()[1]
        wire.clear()
        assert sock.connect_ex((str(ghost(case)), 7777)) == errno.EINPROGRESS
        first = wire.first(lambda p: wire.is_tcp(p, ghost(case), 7777))
        assert first is not None
        theirs = wire.segment(first).seq
        # the other side has not seen that SYN: it sends one of its own
        wire.send(wire.tcp(ghost(case), 7777, own, SYN, seq=1000))
        answer = wire.first(
            lambda p: wire.is_tcp(p, ghost(case), 7777) and int(wire.segment(p).flags) & ACK != 0
        )
        assert answer is not None
        assert int(wire.segment(answer).flags) & SYN
        assert wire.segment(answer).ack == 1001
        wire.send(wire.tcp(ghost(case), 7777, own, SYN | ACK, seq=1000, ack=theirs + 1))
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        assert poll.poll(TIMEOUT_SECONDS * 1000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert sock.getpeername()[:2] == (str(ghost(case)), 7777)
        wire.send(wire.tcp(ghost(case), 7777, own, RST, seq=1001))
    assert case.world.proxy.accepted() == []
