"""Certificates for the whole session, and the modes in which connections of TLS are tested."""

from __future__ import annotations

import pytest

from tests.interop import certificates
from tests.interop.certificates import Certificates
from tests.unit.agents.konnectivity.tls_scene import MODES, Run, running


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One CA for all tests."""
    return certificates.make(tmp_path_factory.mktemp("certs"))


@pytest.fixture(params=MODES, ids=str)
def run_tls(request: pytest.FixtureRequest, certs: Certificates) -> Run:
    """Runs a test in every mode."""
    return running(request.param, certs)


@pytest.fixture(params=MODES[1:3], ids=str)
def run_tls_twice(request: pytest.FixtureRequest, certs: Certificates) -> Run:
    """Runs a test in two modes that have nothing in common."""
    return running(request.param, certs)
