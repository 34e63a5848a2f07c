"""What a pod's connects reach, by destination."""

from __future__ import annotations

import errno
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from nodenet import abi
from nodenet.abi import IPAddress
from nodenet.capture.options import parse_cidrs, parse_excluded_ports
from tests.root.parity.cases import Case, Family
from tests.root.parity.rows import parity
from tests.root.world import APP_PORT, FAR_CIDRS, SECOND_PORT, Addresses

pytestmark = [pytest.mark.root, pytest.mark.bpf]

#: The unspecified addresses too: connect() takes them for loopback.
LOOPBACKS = {4: ("127.0.0.1", "127.0.0.53", "127.255.1.1", "0.0.0.0"), 6: ("::1", "::")}
Where = Callable[[Addresses], IPAddress]


@parity("P1", "P2", "P3", rules=("O8",))
def test_a_connect_reaches_the_proxy_and_neither_end_notices(any_case: Case) -> None:
    case, a = any_case, any_case.a
    seen = case.connect(a.outside, APP_PORT)
    assert seen.verdict == "captured O8"
    assert seen.greeting.listener == abi.OUTBOUND_PORT
    # what an unmodified ztunnel asks, and at which level the answer stands
    assert seen.greeting.original == (a.outside, APP_PORT)
    assert seen.greeting.level == (41 if case.family is Family.V6 else 0)
    # the pod's address on both sides, the destination as the app asked for it
    assert seen.dialled.local is not None
    assert seen.dialled.local[0] == a.pod
    assert seen.greeting.peer == seen.dialled.local
    assert seen.dialled.peer == (a.outside, APP_PORT)
    assert case.world.server.accepted() == []


@parity("P1", rules=("O8",))
@pytest.mark.parametrize(
    ("where", "port"),
    [
        (lambda a: a.outside, 1),
        (lambda a: a.outside, 65535),
        (lambda a: a.outside, abi.OUTBOUND_PORT),
        (lambda a: a.outside, abi.HBONE_PORT),
        (lambda a: a.node, APP_PORT),
        (lambda a: a.service, 443),
        (lambda a: a.metadata, 80),
    ],
    ids=["port 1", "port 65535", "port 15001", "port 15008", "node", "service", "metadata"],
)
def test_any_port_and_any_destination_is_captured(case: Case, where: Where, port: int) -> None:
    host = where(case.a)
    seen = case.connect(host, port)
    assert seen.verdict == "captured O8"
    assert seen.greeting.original == (host, port)


@parity("P1", rules=("O8",))
def test_a_destination_without_a_route(any_case: Case) -> None:
    # netfilter sees a packet only after the route look-up; connect4 runs before it
    case, host = any_case, any_case.a.unrouted
    if case.ebpf:
        seen = case.connect(host, 443)
        assert seen.verdict == "captured O8"
        assert seen.greeting.original == (host, 443)
        assert seen.dialled.peer == (host, 443)
    else:
        seen = case.connect(host, 443, explained="captured O8")
        assert seen.dialled.error == errno.ENETUNREACH


@parity("P6", rules=("O8",))
def test_the_pods_own_service_address_is_captured(any_case: Case) -> None:
    # a virtual address is nobody's own; that its endpoint is this pod is the proxy's business
    seen = any_case.connect(any_case.a.service, APP_PORT)
    assert seen.verdict == "captured O8"
    assert seen.greeting.original == (any_case.a.service, APP_PORT)


@parity("P5", rules=("O4",))
def test_loopback_stays_in_the_pod(any_case: Case) -> None:
    for host in LOOPBACKS[any_case.family.version]:
        seen = any_case.connect(ip_address(host), APP_PORT)
        assert seen.verdict == "bypassed O4", host
        assert seen.greeting.by == "app", host


@parity("P5", rules=("O5",))
@pytest.mark.parametrize("where", [lambda a: a.pod, lambda a: a.pod_second], ids=["main", "second"])
def test_own_addresses_stay_in_the_pod(any_case: Case, where: Where) -> None:
    host = where(any_case.a)
    seen = any_case.connect(host, APP_PORT)
    assert seen.verdict == "bypassed O5"
    assert seen.greeting.by == "app"


@parity("P2", "P5", rules=("O5",))
def test_a_direct_connect_to_the_listener_names_the_listener(case: Case) -> None:
    # the app finds the proxy's port by itself: the proxy must see that it is its own address
    before = case.counted(abi.Direction.OUT)
    _local, greeting = case.world.app.dial(case.a.pod, abi.OUTBOUND_PORT)
    assert case.fired(abi.Direction.OUT, before) == "O5"
    assert greeting.by == "proxy"
    assert greeting.destination == (case.a.pod, abi.OUTBOUND_PORT)


@parity("X1", rules=("O6",))
def test_an_excluded_port_is_left_alone(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(exclude_ports=parse_excluded_ports([f"out:{SECOND_PORT}"]))
    seen = case.connect(a.outside, SECOND_PORT)
    assert seen.verdict == "bypassed O6"
    assert seen.greeting.by == "server"
    assert seen.greeting.peer == seen.dialled.local
    # only that port, and only in that direction
    assert case.connect(a.outside, APP_PORT).verdict == "captured O8"
    assert case.arrive(SECOND_PORT).verdict == "captured I10"


@parity("X1", rules=("O6",))
def test_an_excluded_cidr_is_left_alone(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(exclude_cidrs=parse_cidrs([FAR_CIDRS[case.family.version]]))
    seen = case.connect(a.outside_far, APP_PORT)
    assert seen.verdict == "bypassed O6"
    assert seen.greeting.by == "server"
    assert case.connect(a.outside, APP_PORT).verdict == "captured O8"


@parity("X1", rules=("O6",))
def test_everything_of_one_family_can_be_excluded(case: Case) -> None:
    everything = {4: "0.0.0.0/0", 6: "::/0"}
    version = case.family.version
    case.world.enroll(exclude_cidrs=parse_cidrs([everything[version]]))
    assert case.connect(case.a.outside, APP_PORT).verdict == "bypassed O6"
    other = Case(case.world, Family.V6 if version == 4 else Family.V4)
    assert other.connect(other.a.outside, APP_PORT).verdict == "captured O8"


@parity("P12", rules=("O6",))
def test_the_probe_address_is_never_captured(any_case: Case) -> None:
    seen = any_case.connect(any_case.a.probe, APP_PORT)
    assert seen.verdict == "bypassed O6"
    assert seen.greeting.by == "host"


@parity("X2", rules=("O2", "I3"))
@pytest.mark.parametrize(
    ("direction", "out", "inbound"),
    [("out", "captured O8", "bypassed I3"), ("in", "bypassed O2", "captured I10")],
)
def test_one_direction_alone(case: Case, direction: str, out: str, inbound: str) -> None:
    case.world.enroll(direction=direction)
    assert case.connect(case.a.outside, APP_PORT).verdict == out
    assert case.arrive(APP_PORT).verdict == inbound


@parity("P29", rules=("O2", "I3"))
def test_without_an_enrolment_nothing_is_captured(any_case: Case) -> None:
    any_case.world.unenroll()
    seen = any_case.connect(any_case.a.outside, APP_PORT)
    assert seen.verdict == "bypassed O2"
    assert seen.greeting.by == "server"
    with pytest.raises(Exception, match="no address of a pod enrolled here"):
        any_case.arrive(APP_PORT)
    any_case.world.enroll()
    assert any_case.connect(any_case.a.outside, APP_PORT).verdict == "captured O8"
