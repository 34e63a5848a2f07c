"""The behavioural suite's fixtures: each test runs on both backends and in both families."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodenet.capture.records import Backend
from tests.root.parity.cases import Case, Family
from tests.root.world import World

BACKENDS: tuple[Backend, ...] = ("ebpf", "iptables")


def pytest_configure(config: pytest.Config) -> None:
    """The marker that `tests.root.parity.rows.parity` sets."""
    config.addinivalue_line("markers", "parity(rows, rules): what of docs/parity.md a test shows")


@pytest.fixture(scope="module", params=BACKENDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """One world a backend for the tests of a module."""
    with World(request.param) as made:
        yield made


@pytest.fixture(params=[Family.V4, Family.V6], ids=lambda f: f.value)
def case(world: World, request: pytest.FixtureRequest) -> Case:
    """The pod enrolled with the default options, seen through IPv4 and IPv6."""
    return _case(world, request.param)


@pytest.fixture(params=list(Family), ids=lambda f: f.value)
def any_case(world: World, request: pytest.FixtureRequest) -> Case:
    """As `case`, and also IPv4 through IPv6 sockets."""
    return _case(world, request.param)


def _case(world: World, family: Family) -> Case:
    world.enroll()
    for recorder in (world.proxy, world.app, world.server, world.host):
        recorder.hang_up()
        recorder.accepted()
    return Case(world, family)
