"""Workloads by uid, address, name and hostname; cases of ztunnel: src/state/workload.rs."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from nodenet.mesh.model import NetworkMode, Workload
from nodenet.mesh.workloads import WORKLOADS_CACHED, Workloads
from tests.unit.mesh.building import HBONE, TCP, packed, pod

ADDRESS = packed("10.0.0.1")


def stored(*workloads: Workload, node: str = "") -> Workloads:
    table = Workloads(node)
    for workload in workloads:
        table.insert(workload, msgspec.msgpack.encode(workload))
    return table


def test_found_by_everything() -> None:
    found = pod("a", "10.0.0.1", "fd00::1", network="n1", hostname="a.example")
    table = stored(found)
    assert table.get(found.uid) == found
    assert found.uid in table
    assert len(table) == 1
    assert list(table) == [found]
    assert table.by_address("n1", ADDRESS) == found
    assert table.by_address("n1", packed("fd00::1")) == found
    assert table.by_address("", ADDRESS) is None
    assert table.by_hostname("ns", "a.example") == found
    assert table.by_hostname("other", "a.example") is None
    assert table.by_name("ns", "a", "a") == found
    assert table.by_name("ns", "a", "other") is None
    assert table.by_name("ns", "b", "a") is None


def test_removed_from_everything() -> None:
    found = pod("a", "10.0.0.1", hostname="a.example", node="n")
    table = stored(found, node="n")
    assert table.has_local_identity(found.identity)
    assert table.remove(found.uid) == found
    assert table.remove(found.uid) is None
    assert table.get(found.uid) is None
    assert table.encoded(found.uid) is None
    assert table.by_address("", ADDRESS) is None
    assert table.by_hostname("ns", "a.example") is None
    assert table.by_name("ns", "a", "a") is None
    assert not table.has_local_identity(found.identity)
    assert len(table) == 0


def test_host_network_is_not_found_by_address() -> None:
    table = stored(pod("a", "10.0.0.1", network_mode=NetworkMode.HOST_NETWORK))
    assert table.by_address("", ADDRESS) is None
    assert table.by_name("ns", "a", "a") is not None


def test_host_network_beside_a_pod_of_its_own() -> None:
    hosted = pod("hosted", "10.0.0.1", network_mode=NetworkMode.HOST_NETWORK)
    own = pod("own", "10.0.0.1")
    table = stored(own, hosted)
    assert table.by_address("", ADDRESS) == own
    table.remove(hosted.uid)
    assert table.by_address("", ADDRESS) == own


CLAIMS = {
    "3-pod-hbone": pod("a", "10.0.0.1", uid="c1//Pod/ns/a", protocol=HBONE),
    "2-pod-tcp": pod("b", "10.0.0.1", uid="c1//Pod/ns/b", protocol=TCP),
    "1-entry-hbone": pod("c", "10.0.0.1", uid="c1/networking/WorkloadEntry/ns/c", protocol=HBONE),
    "0-entry-tcp": pod("d", "10.0.0.1", uid="c1/networking/WorkloadEntry/ns/d", protocol=TCP),
}


@pytest.mark.parametrize("order", list(permutations(CLAIMS)), ids=",".join)
def test_overlapping_addresses(order: tuple[str, ...]) -> None:
    table = stored(*(CLAIMS[each] for each in order))
    for best in sorted(CLAIMS, reverse=True):
        assert table.by_address("", ADDRESS) == CLAIMS[best]
        table.remove(CLAIMS[best].uid)
    assert table.by_address("", ADDRESS) is None


def test_of_equal_claims_the_newest() -> None:
    first, second = pod("first", "10.0.0.1"), pod("second", "10.0.0.1")
    assert stored(first, second).by_address("", ADDRESS) == second
    assert stored(second, first).by_address("", ADDRESS) == first


def test_of_one_name_in_two_clusters_this_nodes() -> None:
    here = pod("a", uid="c1//Pod/ns/a", node="n")
    there = pod("a", uid="c2//Pod/ns/a", node="m")
    for order in ((here, there), (there, here)):
        assert stored(*order, node="n").by_name("ns", "a", "a") == here
    assert stored(here, there).by_name("ns", "a", "a") == there


def test_local_identities_are_counted() -> None:
    one, two = (pod(name, service_account="shared", node="n") for name in ("one", "two"))
    far = pod("far", service_account="far", node="m")
    table = stored(one, two, far, node="n")
    assert not table.has_local_identity(far.identity)
    table.remove(one.uid)
    assert table.has_local_identity(two.identity)
    table.remove(two.uid)
    assert not table.has_local_identity(two.identity)


def test_more_than_the_cache_holds() -> None:
    number = WORKLOADS_CACHED * 3
    pods = [pod(f"p{i}", f"10.0.{i >> 8}.{i & 255}") for i in range(number)]
    table = stored(*pods)
    for found in (*pods, *reversed(pods)):
        assert table.by_address("", found.addresses[0]) == found
    assert len(table._decoded) <= 2 * WORKLOADS_CACHED
