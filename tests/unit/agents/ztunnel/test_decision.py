"""Where a connection goes, row by row."""

from __future__ import annotations

import pytest

from nodenet.abi import Direction
from nodenet.agents.ztunnel.address import Address
from nodenet.agents.ztunnel.decision import OWN_PORTS, Reason, Route, decide, is_loopback
from nodenet.agents.ztunnel.pod import Pod
from nodenet.capture.records import Backend

APP = Address("10.0.0.1", 40000)
REMOTE = Address("10.9.9.9", 50000)
OUT, IN = Direction.OUT, Direction.IN


def pod(backend: Backend = "ebpf") -> Pod:
    return Pod(
        cookie=7, name="shop/cart", hosts=frozenset({"10.0.0.1", "fd00::1"}), backend=backend
    )


@pytest.mark.parametrize("direction", [OUT, IN])
def test_without_a_redirect_there_is_no_destination(direction: Direction) -> None:
    found = decide(direction, None, pod(), client=APP)
    assert found is Reason.NO_ORIGINAL


@pytest.mark.parametrize("backend", ["ebpf", "iptables"])
def test_outbound_goes_where_the_application_wanted(backend: Backend) -> None:
    destination = Address("10.96.0.5", 15001)  # somebody else's port of that number
    found = decide(OUT, destination, pod(backend), client=APP)
    assert found == Route(destination, None, 0x539)


@pytest.mark.parametrize("port", sorted(OWN_PORTS))
@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1", "127.0.0.1", "127.3.2.1", "::1", "::"])
def test_outbound_to_an_own_port_is_a_loop(host: str, port: int) -> None:
    assert decide(OUT, Address(host, port), pod(), client=APP) is Reason.OWN_PORT


def test_outbound_to_an_address_the_pod_got_later_is_a_loop_too() -> None:
    later = Address("10.0.0.77", 15006)
    assert decide(OUT, later, pod(), client=APP, local=later) is Reason.OWN_PORT
    assert decide(OUT, later, pod(), client=APP) == Route(later, None, 0x539)


def test_outbound_to_an_application_of_the_pod_itself_is_carried() -> None:
    destination = Address("10.0.0.1", 8080)
    assert decide(OUT, destination, pod(), client=APP) == Route(destination, None, 0x539)


@pytest.mark.parametrize(("backend", "mark"), [("ebpf", 0x111), ("iptables", 0x539)])
def test_inbound_goes_to_the_application_from_the_client(backend: Backend, mark: int) -> None:
    destination = Address("10.0.0.1", 8080)
    found = decide(IN, destination, pod(backend), client=REMOTE)
    assert found == Route(destination, "10.9.9.9", mark)


@pytest.mark.parametrize("port", sorted(OWN_PORTS))
def test_inbound_to_an_own_port_is_a_loop(port: int) -> None:
    assert decide(IN, Address("10.0.0.1", port), pod(), client=REMOTE) is Reason.OWN_PORT


@pytest.mark.parametrize(
    "client",
    [
        Address("10.0.0.1", 5),  # the destination itself
        Address("127.0.0.1", 5),
        Address("fe80::1", 5, 2),  # means something on its link only
    ],
)
def test_clients_that_cannot_be_imitated_are_not(client: Address) -> None:
    found = decide(IN, Address("10.0.0.1", 8080), pod(), client=client)
    assert isinstance(found, Route) and found.source is None


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "::", "0.0.0.0"]))
    assert not any(map(is_loopback, ["128.0.0.1", "10.127.0.1", "fd00::1"]))
