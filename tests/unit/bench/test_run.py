"""Options, turns and errors of the benchmarks' commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench._run import failure, in_turn, parse
from nodenet.errors import NotSupported

SECTIONS = ("kernel", "proxy", "pods")


def test_everything_is_measured_unless_told_otherwise() -> None:
    options, as_json = parse("capture", "about", SECTIONS, [])
    assert not as_json
    assert options.only == set(SECTIONS)
    assert options.choose_rounds(full=11, quick=3) == 11
    assert options.choose_milliseconds(full=400, quick=120) == 400
    assert options.pods is None


def test_options() -> None:
    argv = ["-j", "--quick", "--pods", "50", "--only", "pods", "--only", "kernel"]
    options, as_json = parse("capture", "about", SECTIONS, argv)
    assert as_json
    assert options.only == {"pods", "kernel"}
    assert options.pods == 50
    assert options.choose_rounds(full=11, quick=3) == 3


def test_rounds_win_over_quick() -> None:
    options, _ = parse("stats", "about", ("cost",), ["--quick", "--rounds", "5", "--ms", "20"])
    assert options.choose_milliseconds(full=400, quick=120) == 20
    assert options.choose_rounds(full=11, quick=3) == 5


@pytest.mark.parametrize(
    "argv",
    [["--rounds", "0"], ["--ms", "0"], ["--only", "nothing"], ["--pods", "-1"], ["--qui"], ["x"]],
)
def test_what_cannot_mean_anything_exits_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        parse("capture", "about", SECTIONS, argv)
    assert error.value.code == 2
    assert "./dev bench capture" in capsys.readouterr().err


def test_a_picture_is_made_where_it_can_be() -> None:
    options, _ = parse("relay", "about", ("bulk",), ["--plot", "x.png"], plots=True)
    assert options.plot == Path("x.png")
    options, _ = parse("relay", "about", ("bulk",), [], plots=True)
    assert options.plot is None


def test_no_picture_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("stats", "about", ("cost",), ["--plot", "x.png"])
    assert "--plot" in capsys.readouterr().err


def test_each_round_begins_with_another_variant() -> None:
    turns = [in_turn(("a", "b", "c"), turn) for turn in range(4)]
    assert turns == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"), ("a", "b", "c")]


def test_a_failure_as_json() -> None:
    assert failure(NotSupported("bench", "two CPUs")) == {
        "error": "bench: not supported here; needs two CPUs",
        "kind": "NotSupported",
        "exit": 3,
        "hint": None,
    }
