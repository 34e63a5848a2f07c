"""Services: VIPs, ranges, visibility, endpoints; cases of ztunnel: src/state/service.rs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nodenet.mesh.model import (
    HealthPolicy,
    LoadBalancing,
    NetworkAddress,
    Service,
    ServiceEndpoint,
    Status,
    Visibility,
)
from nodenet.mesh.services import Services, endpoint_of, may_serve
from tests.unit.mesh.building import packed, pod, service

VIP = packed("10.96.0.1")
HIDDEN = Visibility.NAMESPACE
ALLOW_ALL = LoadBalancing(health_policy=HealthPolicy.ALLOW_ALL)


def stored(*services: Service) -> Services:
    table = Services()
    for each in services:
        table.insert(each, msgspec.msgpack.encode(each))
    return table


def insert(table: Services, each: Service) -> None:
    table.insert(each, msgspec.msgpack.encode(each))


def endpoint(name: str, **fields: Any) -> ServiceEndpoint:
    return endpoint_of(pod(name, "10.0.0.1", **fields), ())


def names(found: Service | None) -> str | None:
    return None if found is None else found.key


def test_found_by_everything_and_removed() -> None:
    one = service("s", "10.96.0.1", "n1/10.96.0.2", "10.97.0.0/16")
    table = stored(one)
    assert table.get("ns/s.ns") == one
    assert "ns/s.ns" in table
    assert list(table) == [one]
    assert table.by_hostname("s.ns") == [one]
    assert table.best_by_vip("", VIP, "ns") == one
    assert table.best_by_vip("n1", packed("10.96.0.2"), "ns") == one
    assert table.best_by_vip("n1", VIP, "ns") is None
    assert table.best_by_vip("", packed("10.97.255.1"), "ns") == one
    assert table.remove(one.key) == one
    assert table.remove(one.key) is None
    assert table.get(one.key) is None
    assert table.encoded(one.key) is None
    assert table.by_hostname("s.ns") == []
    assert table.best_by_vip("", VIP, "ns") is None
    assert table.best_by_vip("", packed("10.97.255.1"), "ns") is None
    assert len(table) == 0


@pytest.mark.parametrize(
    ("services", "namespace", "best"),
    [
        pytest.param([("a", {}), ("b", {})], "a", "a", id="own-namespace-first"),
        pytest.param([("a", {}), ("b", {})], "b", "b", id="own-namespace-second"),
        pytest.param([("a", {}), ("b", {})], "c", "a", id="oldest"),
        pytest.param([("a", {}), ("b", {"canonical": True})], "c", "b", id="canonical"),
        pytest.param([("a", {}), ("b", {"canonical": True})], "a", "a", id="own-before-canonical"),
        pytest.param([("a", {"canonical": True}), ("b", {"canonical": True})], "c", "a",
                     id="oldest-canonical"),
        pytest.param([("a", {"visibility": HIDDEN}), ("b", {})], "c", "b", id="invisible"),
        pytest.param([("a", {"visibility": HIDDEN}), ("b", {})], "a", "a", id="visible-at-home"),
        pytest.param([("a", {"visibility": HIDDEN})], "c", None, id="none-visible"),
        pytest.param([("a", {"visibility": HIDDEN})], None, "a", id="any-client-sees-all"),
        pytest.param([("a", {}), ("b", {"canonical": True})], None, "b", id="any-client-canonical"),
    ],
)  # fmt: skip
def test_shared_vip_and_hostname(
    services: list[tuple[str, dict[str, Any]]], namespace: str | None, best: str | None
) -> None:
    table = stored(
        *(
            service("s", "10.96.0.1", namespace=own, hostname="s.example", **fields)
            for own, fields in services
        )
    )
    expected = best and f"{best}/s.example"
    assert names(table.best_by_vip("", VIP, namespace)) == expected
    assert names(table.best_by_hostname("s.example", namespace)) == expected
    assert len(table.by_hostname("s.example")) == len(services)


@pytest.mark.parametrize(
    ("ranges", "namespace", "best"),
    [
        pytest.param({"a": "10.0.0.0/8", "b": "10.96.0.0/16"}, "c", "b", id="longest"),
        pytest.param({"b": "10.96.0.0/16", "a": "10.0.0.0/8"}, "c", "b", id="longest-in-any-order"),
        pytest.param({"a": "10.0.0.0/8", "b": "10.96.0.0/16"}, "a", "a", id="own-before-longest"),
        pytest.param({"a": "10.0.0.0/8", "b!": "10.0.0.0/8"}, "c", "b!", id="canonical"),
        pytest.param({"a": "10.96.0.0/16", "b!": "10.0.0.0/8"}, "c", "a",
                     id="longest-before-canonical"),
        pytest.param({"a": "10.0.0.0/8", "b": "10.0.0.0/8"}, "c", "a", id="oldest"),
        pytest.param({"a": "10.0.0.0/8", "b?": "10.96.0.0/16"}, "c", "a", id="invisible"),
        pytest.param({"a": "10.0.0.0/8", "b?": "10.96.0.0/16"}, "b?", "b?", id="visible-at-home"),
        pytest.param({"a?": "10.0.0.0/8"}, "c", None, id="none-visible"),
        pytest.param({"a": "0.0.0.0/0"}, "c", "a", id="everything"),
        pytest.param({"a": "::/0", "b": "11.0.0.0/8"}, "c", None, id="elsewhere"),
        pytest.param({"a": "10.0.0.0/8", "b": "10.96.0.1"}, "a", "b", id="exact-before-any-range"),
        pytest.param({"a": "10.0.0.0/8", "b?": "10.96.0.1"}, "c", "a", id="exact-but-invisible"),
    ],
)  # fmt: skip
def test_ranges(ranges: dict[str, str], namespace: str, best: str | None) -> None:
    """``!`` marks the canonical service, ``?`` one of its namespace only."""
    table = stored(
        *(
            service(
                "s",
                vip,
                namespace=own,
                canonical=own.endswith("!"),
                visibility=HIDDEN if own.endswith("?") else Visibility.PUBLIC,
            )
            for own, vip in ranges.items()
        )
    )
    found = table.best_by_vip("", VIP, namespace)
    assert (found and found.namespace) == best


def test_endpoints_before_their_service_are_staged() -> None:
    table = Services()
    first = endpoint("a")
    table.change_endpoints("ns/s.ns", {first.uid: first})
    assert table.staged == {"ns/s.ns": {first.uid: first}}
    assert table.endpoints("ns/s.ns") == {}
    insert(table, service("s"))
    assert table.staged == {}
    assert table.endpoints("ns/s.ns") == {first.uid: first}


def test_staged_endpoints_go_with_their_workloads() -> None:
    table = Services()
    first = endpoint("a")
    table.change_endpoints("ns/s.ns", {first.uid: first})
    table.change_endpoints("ns/s.ns", {first.uid: None})
    assert table.staged == {}
    table.change_endpoints("ns/t.ns", {first.uid: None})
    assert table.staged == {}


def test_a_removed_service_stages_its_endpoints_again() -> None:
    table = stored(service("s"))
    first = endpoint("a")
    table.change_endpoints("ns/s.ns", {first.uid: first})
    table.remove("ns/s.ns")
    assert table.staged == {"ns/s.ns": {first.uid: first}}
    insert(table, service("s"))
    assert table.endpoints("ns/s.ns") == {first.uid: first}


def test_a_replaced_service_keeps_endpoints_and_moves_vips() -> None:
    table = stored(service("s", "10.96.0.1", "10.97.0.0/16"))
    first = endpoint("a")
    table.change_endpoints("ns/s.ns", {first.uid: first})
    insert(table, service("s", "10.96.0.2", "10.98.0.0/16"))
    assert table.endpoints("ns/s.ns") == {first.uid: first}
    found = {
        text: names(table.best_by_vip("", packed(text), "ns"))
        for text in ("10.96.0.1", "10.96.0.2", "10.97.0.1", "10.98.0.1")
    }
    assert found == {
        "10.96.0.1": None, "10.96.0.2": "ns/s.ns", "10.97.0.1": None, "10.98.0.1": "ns/s.ns",
    }  # fmt: skip
    assert len(table) == 1


def test_a_replaced_service_keeps_its_place_at_a_shared_vip() -> None:
    table = stored(*(service("s", "10.96.0.1", namespace=own) for own in ("a", "b")))
    insert(table, service("s", "10.96.0.1", namespace="a", ports={81: 81}))
    assert names(table.best_by_vip("", VIP, "c")) == "a/s.a"


@pytest.mark.parametrize(
    ("status", "balancing", "serves"),
    [
        (Status.HEALTHY, None, True),
        (Status.UNHEALTHY, None, False),
        (Status.UNHEALTHY, LoadBalancing(), False),
        (Status.UNHEALTHY, ALLOW_ALL, True),
        (Status.HEALTHY, ALLOW_ALL, True),
    ],
)
def test_health(status: Status, balancing: LoadBalancing | None, serves: bool) -> None:
    found = service("s", load_balancing=balancing)
    assert may_serve(found, endpoint("a", status=status)) is serves


def test_revision_changes_with_the_service_and_its_endpoints() -> None:
    table = stored(service("s"), service("t"))
    seen = {table.revision("ns/s.ns")}
    other = table.revision("ns/t.ns")
    for changes in ({"a": endpoint("a")}, {"a": None}):
        table.change_endpoints("ns/s.ns", dict(changes))
        assert table.revision("ns/s.ns") not in seen
        seen.add(table.revision("ns/s.ns"))
    insert(table, service("s", ports={81: 81}))
    assert table.revision("ns/s.ns") not in seen
    seen.add(table.revision("ns/s.ns"))
    table.remove("ns/s.ns")
    insert(table, service("s"))
    assert table.revision("ns/s.ns") not in seen
    assert table.revision("ns/t.ns") == other
    assert table.revision("unknown") == 0


def test_equal_parts_of_endpoints_are_shared() -> None:
    one, two = (
        endpoint_of(pod(name, node="n", network="w", services={}), tuple([(80, 8080)]))
        for name in ("one", "two")
    )
    assert one.placement is two.placement
    assert one.ports is two.ports


def test_two_networks_may_have_one_vip() -> None:
    here, there = service("here", "n1/10.96.0.1"), service("there", "n2/10.96.0.1")
    table = stored(here, there)
    assert here.vips == (NetworkAddress("n1", VIP),)
    assert table.best_by_vip("n1", VIP, "ns") == here
    assert table.best_by_vip("n2", VIP, "ns") == there
