"""A route whose address the DNS has to tell."""

from __future__ import annotations

import pytest

from nodenet.mesh.refused import EmptyResolvedAddresses
from nodenet.mesh.route import Protocol, Resolve, Route
from tests.unit.mesh.building import at, ip, rng


def unresolved(*, prefer_ipv6: bool = False, authority: str = "") -> Route:
    return Route(
        protocol=Protocol.HBONE,
        next_hop=None,
        row="Z9",
        authority=authority,
        resolve=Resolve(
            hostname="a.example",
            uid="c1//Pod/ns/a",
            prefer_ipv6=prefer_ipv6,
            port=15008,
            authority_port=None if authority else 8080,
        ),
    )


MIXED = [ip("192.0.2.1"), ip("2001:db8::1"), ip("192.0.2.2"), ip("2001:db8::2")]


@pytest.mark.parametrize(
    ("prefer_ipv6", "addresses", "expected"),
    [
        (False, MIXED, {"192.0.2.1:15008", "192.0.2.2:15008"}),
        (True, MIXED, {"[2001:db8::1]:15008", "[2001:db8::2]:15008"}),
        (False, MIXED[1::2], {"[2001:db8::1]:15008", "[2001:db8::2]:15008"}),
        (True, MIXED[:1], {"192.0.2.1:15008"}),
    ],
)
def test_an_address_of_the_wanted_family(
    prefer_ipv6: bool, addresses: list[object], expected: set[str]
) -> None:
    random = rng()
    route = unresolved(prefer_ipv6=prefer_ipv6)
    found = [route.resolved([ip(str(each)) for each in addresses], random) for _ in range(40)]
    assert {str(each.next_hop) for each in found} == expected
    for each in found:
        assert each.resolve is None
        assert each.next_hop is not None
        assert each.authority == str(each.next_hop).replace(":15008", ":8080")


def test_an_authority_that_is_known_stands() -> None:
    found = unresolved(authority="10.96.0.1:80").resolved([ip("192.0.2.1")], rng())
    assert found.authority == "10.96.0.1:80"


def test_no_address() -> None:
    with pytest.raises(EmptyResolvedAddresses) as caught:
        unresolved().resolved([], rng())
    assert caught.value.row == "Z9"
    assert str(caught.value) == (
        "ip addresses were resolved for workload c1//Pod/ns/a, "
        "but valid dns response had no A/AAAA records"
    )


def test_a_known_hop_stays() -> None:
    route = Route(protocol=Protocol.TCP, next_hop=at("192.0.2.1:80"), row="Z5c")
    assert route.resolved([], rng()) is route
