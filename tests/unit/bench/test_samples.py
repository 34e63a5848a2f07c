"""Medians, ratios and rows of what was measured."""

from __future__ import annotations

import pytest

from bench._samples import Samples, significant


def three_rounds() -> Samples:
    """The machine is twice as slow in the second round."""
    samples = Samples()
    for none, slow, fast in ((10.0, 16.0, 12.0), (20.0, 32.0, 24.0), (10.0, 18.0, 13.0)):
        samples.record("out", "connect", "us", "none", none)
        samples.record("out", "connect", "us", "slow", slow)
        samples.record("out", "connect", "us", "fast", fast)
    return samples


def test_a_ratio_is_taken_within_each_round() -> None:
    # of the medians it would be 18/10
    assert three_rounds().ratio("out", "connect", "slow", "none") == pytest.approx(1.6)


def test_what_one_adds_against_what_another_adds() -> None:
    # slow adds 6, 12, 8; fast adds 2, 4, 3
    assert three_rounds().added_ratio("out", "connect", "fast", "slow") == pytest.approx(3 / 8)


def test_rows_keep_the_order_of_recording_and_know_the_extremes() -> None:
    rows = three_rounds().rows()
    assert [row.variant for row in rows] == ["none", "slow", "fast"]
    assert (rows[1].median, rows[1].low, rows[1].high) == (18.0, 16.0, 32.0)
    assert [row.ratio for row in rows] == [None, pytest.approx(1.6), pytest.approx(1.2)]


def test_a_scene_may_have_a_baseline_of_its_own() -> None:
    samples = Samples(baselines={"maps": "bpftool"})
    samples.record("maps", "dump", "s", "nodenet", 0.05)
    samples.record("maps", "dump", "s", "bpftool", 2.0)
    assert samples.ratios() == {"maps: dump, nodenet/bpftool": 0.025}


def test_without_its_baseline_a_row_has_no_ratio() -> None:
    samples = Samples()
    samples.record("out", "proxy CPU", "us", "ebpf", 80.0)
    (row,) = samples.rows()
    assert row.ratio is None
    assert samples.ratios() == {}


def test_rounds_that_do_not_fit_together_are_an_error() -> None:
    samples = three_rounds()
    samples.record("out", "connect", "us", "none", 11.0)
    with pytest.raises(ValueError, match="shorter"):
        samples.ratio("out", "connect", "none", "slow")


def test_the_document_of_a_row_has_four_digits() -> None:
    samples = Samples()
    samples.record("out", "connections", "1/s", "none", 12345.678)
    samples.record("out", "connections", "1/s", "ebpf", 11111.111)
    assert samples.rows()[1].document() == {
        "scene": "out",
        "measure": "connections",
        "unit": "1/s",
        "variant": "ebpf",
        "median": 11110.0,
        "min": 11110.0,
        "max": 11110.0,
        "ratio": 0.9,
    }


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, 0.0), (123456.0, 123500.0), (0.00012345, 0.0001234)]
)
def test_significant_digits(value: float, shown: float) -> None:
    assert significant(value) == shown
