"""The allowance for work that is for nothing."""

from __future__ import annotations

import pytest

from nodenet.hbone.errors import ErrorCode, H2Error
from nodenet.hbone.nuisance import ALLOWANCE, REFILL_PER_SECOND, Nuisance


def test_it_runs_out_and_comes_back_with_time() -> None:
    now = 100.0
    nuisance = Nuisance(lambda: now)
    for _ in range(ALLOWANCE):
        nuisance.spend(1, "PING")
    with pytest.raises(H2Error, match="PING last") as raised:
        nuisance.spend(1, "PING")
    assert raised.value.code is ErrorCode.ENHANCE_YOUR_CALM
    now += 1.0
    for _ in range(REFILL_PER_SECOND - 2):
        nuisance.spend(1, "PING")


def test_a_steady_trickle_is_never_too_much() -> None:
    now = 0.0
    nuisance = Nuisance(lambda: now)
    for _ in range(5 * ALLOWANCE):
        nuisance.spend(1, "PING")
        now += 1.0 / REFILL_PER_SECOND


def test_silence_is_not_saved_up() -> None:
    now = 0.0
    nuisance = Nuisance(lambda: now)
    now = 1e6
    count = 0
    with pytest.raises(H2Error):
        while True:
            nuisance.spend(1, "PING")
            count += 1
    assert count <= 2 * ALLOWANCE + 1
