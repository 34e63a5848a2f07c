"""What reaches a pod from outside, by port."""

from __future__ import annotations

import errno

import pytest

from nodenet import abi
from nodenet.capture.options import parse_excluded_ports
from tests.root.parity.cases import Case
from tests.root.parity.rows import parity
from tests.root.world import APP_PORT, SECOND_PORT

pytestmark = [pytest.mark.root, pytest.mark.bpf]

#: Nobody of the pod listens there.
CLOSED_PORT = 81


@parity("P7", rules=("I10",))
def test_an_open_port_is_served_by_the_proxy(any_case: Case) -> None:
    case, a = any_case, any_case.a
    seen = case.arrive(APP_PORT)
    assert seen.verdict == "captured I10"
    assert seen.greeting.listener == abi.INBOUND_PORT
    assert seen.greeting.destination == (a.pod, APP_PORT)
    assert seen.greeting.peer == seen.dialled.local
    assert seen.dialled.peer == (a.pod, APP_PORT)
    assert case.world.app.accepted() == []
    # without netfilter there is nothing to ask: ztunnel falls back to its own address
    assert seen.greeting.original == (None if case.ebpf else (a.pod, APP_PORT))


@parity("P7", rules=("I10",))
def test_each_address_of_the_pod_is_captured(case: Case) -> None:
    seen = case.arrive(APP_PORT, to=case.a.pod_second)
    assert seen.verdict == "captured I10"
    assert seen.greeting.destination == (case.a.pod_second, APP_PORT)


@parity("P7", "P10", rules=("I10",))
@pytest.mark.parametrize("port", [CLOSED_PORT, 1, 65535])
def test_a_closed_port_looks_open(case: Case, port: int) -> None:
    seen = case.arrive(port)
    assert seen.verdict == "captured I10"
    assert seen.greeting.destination == (case.a.pod, port)


@parity("P8", rules=("I4",))
def test_hbone_reaches_its_listener_as_it_is(any_case: Case) -> None:
    seen = any_case.arrive(abi.HBONE_PORT)
    assert seen.verdict == "bypassed I4"
    assert (seen.greeting.by, seen.greeting.listener) == ("proxy", abi.HBONE_PORT)
    assert seen.greeting.destination == (any_case.a.pod, abi.HBONE_PORT)
    assert seen.greeting.peer == seen.dialled.local


@parity("P9", rules=("I5",))
@pytest.mark.parametrize("port", [abi.OUTBOUND_PORT, abi.INBOUND_PORT, abi.DNS_PORT])
def test_nobody_outside_reaches_the_proxys_own_ports(any_case: Case, port: int) -> None:
    case = any_case
    seen = case.arrive(port)
    accepted = case.world.proxy.accepted()
    if case.ebpf:
        assert seen.verdict == "refused I5"
        assert accepted == []
    else:
        # the proxy gets it as an inbound connection to itself, and rejects that
        assert seen.verdict == "captured I10"
        assert seen.greeting.listener == abi.INBOUND_PORT
        assert seen.greeting.original == (case.a.pod, port)


@parity("P11", rules=("I2",))
def test_what_the_pod_says_to_itself_is_not_inbound(any_case: Case) -> None:
    case, a = any_case, any_case.a
    for host, source in ((a.pod, a.pod), (a.pod_second, a.pod), (a.pod, a.pod_second)):
        seen = case.arrive(APP_PORT, source=case.world.pod, to=host, address=source)
        assert seen.verdict == "bypassed I2"
        assert seen.greeting.by == "app"
        assert seen.greeting.peer == seen.dialled.local


@parity("X1", rules=("I6",))
def test_an_excluded_port_goes_to_the_app(any_case: Case) -> None:
    case = any_case
    case.world.enroll(exclude_ports=parse_excluded_ports([f"in:{SECOND_PORT}"]))
    seen = case.arrive(SECOND_PORT)
    assert seen.verdict == "bypassed I6"
    assert seen.greeting.by == "app"
    assert seen.greeting.peer == seen.dialled.local
    assert case.arrive(APP_PORT).verdict == "captured I10"
    assert case.connect(case.a.outside, SECOND_PORT).verdict == "captured O8"


@parity("P7", "X1", rules=("I6",))
def test_a_closed_excluded_port_is_closed(case: Case) -> None:
    case.world.enroll(exclude_ports=parse_excluded_ports([f"in:{CLOSED_PORT}"]))
    # left to the kernel, which refuses as for any port without a listener
    seen = case.arrive(CLOSED_PORT, explained="bypassed I6")
    assert seen.dialled.error == errno.ECONNREFUSED


@parity("P22", rules=("I3", "I4", "I5"))
def test_ingress_mode(any_case: Case) -> None:
    case, a = any_case, any_case.a
    case.world.enroll(mode="ingress")
    plain = case.arrive(APP_PORT)
    assert plain.verdict == "bypassed I3"
    assert plain.greeting.by == "app"
    assert plain.greeting.peer == plain.dialled.local
    hbone = case.arrive(abi.HBONE_PORT)
    assert hbone.verdict == "bypassed I4"
    assert (hbone.greeting.by, hbone.greeting.listener) == ("proxy", abi.HBONE_PORT)
    assert case.connect(a.outside, APP_PORT).verdict == "captured O8"


@parity("P9", "P22", rules=("I5",))
@pytest.mark.parametrize("options", [{"mode": "ingress"}, {"direction": "out"}], ids=str)
@pytest.mark.parametrize("port", [abi.OUTBOUND_PORT, abi.DNS_PORT])
def test_the_outbound_listener_is_closed_without_inbound_capture_too(
    case: Case, port: int, options: dict[str, str]
) -> None:
    case.world.enroll(**options)
    # without inbound capture the kernel's explanation of iptables knows nothing of rule w1
    explained = None if case.ebpf else "bypassed I3"
    seen = case.arrive(port, explained=explained)
    if case.ebpf:
        assert seen.verdict == "refused I5"
    else:
        assert seen.greeting.listener == abi.INBOUND_PORT
    assert all(g.listener == abi.INBOUND_PORT for g in case.world.proxy.accepted())
