"""What the tests of certificates share."""

from __future__ import annotations

import random

import pytest

from tests.unit.identity.authority import Authority


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)
