"""Certificates for the whole session."""

from __future__ import annotations

import pytest

from tests.interop import certificates
from tests.interop.certificates import Certificates


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One CA for all tests."""
    return certificates.make(tmp_path_factory.mktemp("certs"))
