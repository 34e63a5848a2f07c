"""A folder with certificates, and processes that are ended."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import certificates
from tests.interop.certificates import Certificates
from tests.interop.peers import World


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One CA for all tests."""
    return certificates.make(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def world(certs: Certificates) -> Iterator[World]:
    """Its folder has a short name: Unix sockets allow no long ones."""
    with tempfile.TemporaryDirectory(prefix="nn-") as folder, World(Path(folder), certs) as made:
        yield made
