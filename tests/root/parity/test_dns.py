"""DNS: port 53 over UDP and TCP goes to the proxy's DNS port where the pod asks for it."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

import pytest

from nodenet import abi
from nodenet.abi import Direction
from nodenet.capture.options import parse_cidrs, parse_excluded_ports
from tests.root.dialling import TIMEOUT_SECONDS, open_socket, sockaddr, unmapped
from tests.root.parity.cases import Case
from tests.root.parity.rows import parity
from tests.root.world import DNS_PORT, FAR_CIDRS

pytestmark = [pytest.mark.root, pytest.mark.bpf]

_BUFFER = 4096


@parity("P17", rules=("O8",))
@pytest.mark.parametrize("connect", [False, True], ids=["unconnected", "connected"])
def test_a_query_goes_to_the_dns_proxy(any_case: Case, connect: bool) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    seen = case.query(a.outside, connect=connect)
    assert seen.verdict == "captured O8"
    assert seen.greeting.by == "proxy"
    assert seen.greeting.listener == abi.DNS_PORT
    assert seen.dialled.peer == (a.outside, DNS_PORT)
    assert case.world.server.accepted() == []


@parity("P17", rules=("O8",))
def test_a_server_without_a_route(any_case: Case) -> None:
    case, host = any_case, any_case.a.unrouted
    case.world.enroll(dns=True)
    if case.ebpf:
        assert case.query(host).dialled.peer == (host, DNS_PORT)
    else:
        seen = case.query(host, explained="captured O8")
        assert seen.dialled.error == errno.ENETUNREACH


@parity("P17", rules=("O8",))
def test_a_connected_socket_shows_the_server(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    with open_socket(case.world.pod, a.outside, mapped=case.mapped, udp=True) as sock:
        sock.settimeout(TIMEOUT_SECONDS)
        sock.connect(sockaddr(a.outside, DNS_PORT, mapped=case.mapped))
        assert unmapped(sock.getpeername()) == (a.outside, DNS_PORT)
        sock.send(b"query")
        data, _ancillary, _flags, sender = sock.recvmsg(_BUFFER)
        assert data
        assert unmapped(sender) == (a.outside, DNS_PORT)


@parity("P17", rules=("O8",))
def test_a_bound_socket(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    seen = case.query(
        a.outside, prepare=lambda sock: sock.bind(sockaddr(a.pod, 0, mapped=case.mapped))
    )
    assert seen.verdict == "captured O8"
    assert seen.greeting.peer == seen.dialled.local
    assert seen.dialled.peer == (a.outside, DNS_PORT)


@parity("P17", rules=("O8",))
def test_two_servers_in_turn_on_one_socket(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    with open_socket(case.world.pod, a.outside, mapped=case.mapped, udp=True) as sock:
        sock.settimeout(TIMEOUT_SECONDS)
        for server in (a.outside, a.outside_second, a.outside):
            sock.sendto(b"query", sockaddr(server, DNS_PORT, mapped=case.mapped))
            _data, sender = sock.recvfrom(_BUFFER)
            assert unmapped(sender) == (server, DNS_PORT)


@parity("P17", rules=("O8",))
def test_two_servers_at_once_on_one_socket(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    with open_socket(case.world.pod, a.outside, mapped=case.mapped, udp=True) as sock:
        sock.settimeout(TIMEOUT_SECONDS)
        servers = [(a.outside, DNS_PORT), (a.outside_second, DNS_PORT)]
        for host, port in servers:
            sock.sendto(b"query", sockaddr(host, port, mapped=case.mapped))
        senders = [unmapped(sock.recvfrom(_BUFFER)[1]) for _ in servers]
    # one original a socket: resolvers accept an answer from any server they asked
    assert senders == ([servers[1]] * 2 if case.ebpf else servers)


@parity("P18", rules=("O8",))
def test_tcp_goes_to_the_dns_proxy_too(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True)
    seen = case.connect(a.outside, DNS_PORT)
    assert seen.verdict == "captured O8"
    assert seen.greeting.listener == abi.DNS_PORT
    assert seen.greeting.original == (a.outside, DNS_PORT)
    assert seen.greeting.peer == seen.dialled.local
    # connect goes to loopback, so an unbound socket comes from there; a redirect keeps its address
    assert seen.greeting.peer[0].is_loopback == case.ebpf
    assert seen.dialled.peer == (a.outside, DNS_PORT)


@parity("P18", rules=("O4", "O5"))
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_the_pods_own_resolver_is_left_alone(case: Case, protocol: str) -> None:
    case.world.enroll(dns=True)
    stub = ip_address("127.0.0.53" if case.family.version == 4 else "::1")
    udp = protocol == "udp"
    for host, row in ((stub, "O4"), (case.a.pod, "O5")):
        case.world.app.listen(DNS_PORT, str(host), udp=udp)
        try:
            seen = case.query(host) if udp else case.connect(host, DNS_PORT)
        finally:
            case.world.app.unlisten(DNS_PORT, str(host), udp=udp)
        assert seen.verdict == f"bypassed {row}"
        assert seen.greeting.by == "app"


@parity("P19", rules=("O1", "O8"))
def test_switched_off_port_53_is_like_any_other(any_case: Case) -> None:
    case, a = any_case, any_case.a
    tcp = case.connect(a.outside, DNS_PORT)
    assert tcp.verdict == "captured O8"
    assert tcp.greeting.listener == abi.OUTBOUND_PORT
    udp = case.query(a.outside)
    assert udp.verdict == "bypassed O1"
    assert udp.greeting.by == "server"
    assert udp.dialled.peer == (a.outside, DNS_PORT)


@parity("X1", rules=("O6",))
def test_exclusions_hold_for_dns(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(dns=True, exclude_cidrs=parse_cidrs([FAR_CIDRS[case.family.version]]))
    assert case.query(a.outside_far).verdict == "bypassed O6"
    assert case.connect(a.outside_far, DNS_PORT).verdict == "bypassed O6"
    assert case.query(a.outside).verdict == "captured O8"
    case.world.enroll(dns=True, exclude_ports=parse_excluded_ports(["out:53"]))
    assert case.query(a.outside).verdict == "bypassed O6"
    assert case.connect(a.outside, DNS_PORT).verdict == "bypassed O6"


@parity("P4", "P17", rules=("O3",))
def test_the_proxys_own_queries_go_out(case: Case) -> None:
    case.world.enroll(dns=True)
    for udp in (True, False):
        before = case.counted(Direction.OUT)
        _local, greeting = case.world.proxy.dial(case.a.outside, DNS_PORT, udp=udp, mark=abi.MARK)
        assert greeting.by == "server"
        assert case.fired(Direction.OUT, before) == "O3"


@parity("P4", "P17", rules=("O8",))
def test_a_mark_does_not_exempt_an_apps_queries(case: Case) -> None:
    case.world.enroll(dns=True)
    seen = case.query(
        case.a.outside,
        prepare=lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, abi.MARK),
        explained="captured O8",
    )
    assert seen.greeting.by == ("proxy" if case.ebpf else "server")


@parity("P20", rules=("O3", "O8"))
def test_the_proxys_flow_does_not_collide_with_the_apps(case: Case) -> None:
    # the same five numbers twice: once the app's query that was captured, then the proxy's own
    case.world.enroll(dns=True)
    with (
        case.world.pod.entered(),
        socket.socket(
            socket.AF_INET if case.family.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM
        ) as sock,
    ):
        sock.settimeout(TIMEOUT_SECONDS)
        sock.bind((str(case.a.pod), 0))
        port = sock.getsockname()[1]
        sock.sendto(b"query", (str(case.a.outside), DNS_PORT))
        assert b'"proxy"' in sock.recv(_BUFFER)
    local, greeting = case.world.proxy.dial(
        case.a.outside,
        DNS_PORT,
        udp=True,
        mark=abi.MARK,
        source=case.a.pod,
        source_port=port,
    )
    assert local == (case.a.pod, port)
    assert greeting.by == "server"
    assert greeting.peer == local
