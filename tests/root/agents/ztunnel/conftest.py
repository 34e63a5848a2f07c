"""Worlds for the proxy's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.records import Backend
from tests.root.agents.ztunnel.proxied import Proxied


@pytest.fixture
def backend() -> Backend:
    """How the pod is redirected; parametrized by the tests to which it matters."""
    return "ebpf"


@pytest.fixture
def world(backend: Backend, tmp_path: Path) -> Iterator[Proxied]:
    """A redirected pod and an outside; no proxy runs yet."""
    with Proxied(backend, tmp_path) as made:
        yield made
