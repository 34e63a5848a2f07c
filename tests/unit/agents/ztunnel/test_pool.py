"""Connections to other proxies: begun, shared, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.agents.ztunnel.flow_facts import ResponseFlag
from tests.unit.agents.ztunnel.hbone_scene import Scene

Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def scene(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(loop, tmp_path)
    yield made
    made.close()


def test_a_handshake_under_way_ends_with_its_pool(scene: Scene, until: Until) -> None:
    scene.accepts = False
    opener = scene.open()
    until(lambda: scene.held)
    [connection] = scene.pool.connections
    until(lambda: connection.transport is not None)
    transport = connection.transport
    assert transport is not None and transport.core is None
    left: list[bool] = []
    scene.pool.leave(lambda: left.append(True))
    assert left and opener.failures
    assert transport.over
    assert len(scene.poller) == 0


def test_nobody_answers_the_syn(scene: Scene) -> None:
    opener = scene.open()
    [connection] = scene.pool.connections
    connection.connect_expired()
    [(error, _)] = opener.failures
    assert "connection timed out, maybe a NetworkPolicy is blocking" in error.message
    assert ResponseFlag.of(error) is ResponseFlag.NETWORK_POLICY
