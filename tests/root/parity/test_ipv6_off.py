"""A pod without IPv6, on lo either: IPv4 works, and nothing fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodenet import abi
from nodenet.capture.verify import verify
from tests.root.parity.cases import Case, Family
from tests.root.parity.rows import parity
from tests.root.world import APP_PORT, World

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture(scope="module", params=["ebpf", "iptables"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param, versions=(4,)) as made:
        yield made


@parity("P31", rules=("O8", "I10", "I8"))
def test_ipv4_works_alone(world: World) -> None:
    case = Case(world, Family.V4)
    world.enroll(dns=True)
    assert world.record.ips == (str(case.a.pod), str(case.a.pod_second))
    assert case.connect(case.a.outside, APP_PORT).verdict == "captured O8"
    assert case.arrive(APP_PORT).verdict == "captured I10"
    assert case.query(case.a.outside).verdict == "captured O8"
    assert case.connect(case.a.outside, 53).verdict == "captured O8"
    _local, greeting = world.proxy.dial(case.a.pod, APP_PORT, source=case.a.outside, mark=abi.MARK)
    assert greeting.peer[0] == case.a.outside
    verdict = verify(world.capture.instance, world.capture.maps, world.record)
    assert verdict.ok, verdict
    world.unenroll()
    assert case.connect(case.a.outside, APP_PORT).verdict == "bypassed O2"
