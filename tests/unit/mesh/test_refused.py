"""The texts that go into access logs, to the letter, and what an operator reads beside them."""

from __future__ import annotations

import pytest

from nodenet.mesh.refused import (
    EmptyResolvedAddresses,
    NoHealthyUpstream,
    NoResolvedAddresses,
    NoService,
    NoValidDestination,
    Refused,
    SelfCall,
    UnknownNetworkGateway,
    UnknownSourceWorkload,
    UnknownWaypoint,
)
from tests.unit.mesh.building import TCP, at, pod

TEXTS = [
    (SelfCall(), "attempted recursive call to ourselves"),
    (
        UnknownSourceWorkload(namespace="shop", name="cart-0", service_account="cart"),
        "failed to fetch information about local workload: cart.shop (cart-0)",
    ),
    (UnknownWaypoint("w.ns", "Z4"), "unknown waypoint: waypoint w.ns not found"),
    (
        UnknownNetworkGateway("far/192.0.2.1", "Z6"),
        "unknown network gateway: network gateway far/192.0.2.1 not found",
    ),
    (NoHealthyUpstream(at("10.96.0.1:80")), "no healthy upstream: 10.96.0.1:80"),
    (NoService(at("[fd96::1]:80")), "no service for target address: [fd96::1]:80"),
    (
        NoValidDestination(pod("a", protocol=TCP), "Z9"),
        "no valid routing destination for workload: Workload{a with uid c1//Pod/ns/a (TCP)}",
    ),
    (
        NoResolvedAddresses("c1//Pod/ns/a", "Z9"),
        "no ip addresses were resolved for workload: c1//Pod/ns/a",
    ),
    (
        EmptyResolvedAddresses("c1//Pod/ns/a", "Z9"),
        "ip addresses were resolved for workload c1//Pod/ns/a, "
        "but valid dns response had no A/AAAA records",
    ),
]


@pytest.mark.parametrize(("refused", "text"), TEXTS, ids=lambda value: type(value).__name__)
def test_text(refused: Refused, text: str) -> None:
    assert str(refused) == text
    assert refused.row.startswith("Z")
    assert refused.line().startswith(f"{text}; ")
    assert "\n" not in refused.line()


def test_all_are_here() -> None:
    assert {type(refused) for refused, _ in TEXTS} == set(Refused.__subclasses__())
