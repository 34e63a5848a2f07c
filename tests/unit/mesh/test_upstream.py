"""Who answers, at which address, and under which names (spec: SANs)."""

from __future__ import annotations

import pytest

from nodenet.mesh import upstream
from nodenet.mesh.load_balancing import Resolution
from nodenet.mesh.model import IpFamilies, Service
from nodenet.mesh.refused import NoValidDestination
from nodenet.mesh.upstream import Upstream, is_spiffe_id
from tests.unit.mesh.building import at, ip, mesh, pod, ref, rng, service

S = "ns/s.ns"
OWN = "spiffe://cluster.local/ns/ns/sa/a"
X, Y = "spiffe://td/ns/x/sa/x", "spiffe://td/ns/y/sa/y"


def found(through: Service | None, *addresses: str, towards: str = "192.0.2.1:80") -> Upstream:
    return Upstream(pod("a", *addresses), 8080, through, at(towards), None)


@pytest.mark.parametrize(
    ("sans", "of_service", "all_of_them"),
    [
        ((), (), (OWN,)),
        ((X, Y), (X, Y), (X, Y, OWN)),
        ((X, X), (X,), (X, OWN)),
        ((X, OWN), (X, OWN), (X, OWN)),
        (("x.example", X), (X,), (X, OWN)),
        (("spiffe://td/ns/x",), (), (OWN,)),
    ],
)
def test_identities(
    sans: tuple[str, ...], of_service: tuple[str, ...], all_of_them: tuple[str, ...]
) -> None:
    each = found(service("s", subject_alt_names=sans))
    assert each.service_identities == of_service
    assert each.identities == all_of_them
    assert found(None).identities == (OWN,)


def test_a_name_that_is_no_id_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    assert found(service("s", subject_alt_names=("odd.example",))).service_identities == ()
    assert "skipping the service's name 'odd.example'" in caplog.text


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        (OWN, True),
        ("spiffe://td/ns/a/sa/b/c", False),
        ("spiffe://td/ns/a/sa/", False),
        ("spiffe:///ns/a/sa/b", False),
        ("spiffe://td/ns//sa/b", False),
        ("spiffe://td/sa/a/ns/b", False),
        ("https://td/ns/a/sa/b", False),
        ("spiffe:/td/ns/a/sa/b", False),
        ("a", False),
        ("", False),
    ],
)
def test_spiffe_ids(name: str, valid: bool) -> None:
    assert is_spiffe_id(name) is valid


V4, V6 = "192.0.2.1:80", "[2001:db8::1]:80"


@pytest.mark.parametrize(
    ("addresses", "families", "towards", "expected"),
    [
        (("10.0.0.1", "10.0.0.2"), IpFamilies.AUTOMATIC, "10.0.0.2:80", "10.0.0.2"),
        (("10.0.0.1", "10.0.0.2"), IpFamilies.AUTOMATIC, V4, "10.0.0.1"),
        (("fd00::1", "10.0.0.1"), IpFamilies.AUTOMATIC, V4, "10.0.0.1"),
        (("10.0.0.1", "fd00::1"), IpFamilies.AUTOMATIC, V6, "fd00::1"),
        (("10.0.0.1",), IpFamilies.AUTOMATIC, V6, "10.0.0.1"),
        (("10.0.0.1", "fd00::1"), IpFamilies.IPV6_ONLY, V4, "fd00::1"),
        # an address asked for by name is one that the service's families cannot forbid
        (("10.0.0.1", "fd00::1"), IpFamilies.IPV6_ONLY, "10.0.0.1:80", "10.0.0.1"),
    ],
)
def test_address(
    addresses: tuple[str, ...], families: IpFamilies, towards: str, expected: str
) -> None:
    each = found(service("s", ip_families=families), *addresses, towards=towards)
    assert each.address("Z9") == ip(expected)


def test_without_an_address() -> None:
    with pytest.raises(NoValidDestination) as caught:
        found(None).address("Z4b")
    assert caught.value.row == "Z4b"
    by_name = Upstream(pod("a", hostname="a.example"), 80, None, at(V4), None)
    assert by_name.address("Z9") is None


def test_a_service_answers_before_a_workload() -> None:
    a, s = pod("a", "10.0.0.2"), service("s", "10.0.0.2")
    state = mesh(a, s)
    assert upstream.answering(state, "", at("10.0.0.2:80"), "ns") == s
    assert upstream.answering(mesh(a), "", at("10.0.0.2:80"), "ns") == a
    assert upstream.answering(state, "far", at("10.0.0.2:80"), "ns") is None


def test_choose() -> None:
    a, s = pod("a", "10.0.0.2", services=[S]), service("s")
    state = mesh(a, s)
    source = pod("source", "10.0.0.1", waypoint=ref("/10.0.0.9"))

    def choose(what: object, port: int = 80) -> tuple[str, int] | None:
        assert what is None or what in (a, s)
        chosen = upstream.choose(
            state, what if what is None else (a if what is a else s), source, port, at(V4),
            Resolution.STANDARD, rng(),
        )  # fmt: skip
        return None if chosen is None else (chosen.workload.name, chosen.port)

    assert choose(None) is None
    assert choose(a) == ("a", 80)
    assert choose(s) == ("a", 8080)
    assert choose(s, 81) is None
