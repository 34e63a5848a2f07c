"""Steps on stderr, with and without a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nodenet.cli.globals import Globals
from nodenet.cli.progress import Steps


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def clock(*times: float) -> Any:
    left: Iterator[float] = iter(times)
    return lambda: next(left)


def test_two_lines_a_step_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(Globals(environ={}), 2, clock=clock(1.0, 1.44, 2.0, 5.0))
    with steps.step("compile"):
        pass
    with pytest.raises(ValueError, match="boom"), steps.step("load"):
        raise ValueError("boom")
    assert capsys.readouterr().err == (
        "[1/2] compile\n[1/2] compile  0.4 s\n[2/2] load\n[2/2] load  failed after 3.0 s\n"
    )


def test_quiet_says_nothing(items: Any) -> None:
    outcome = items("item", "work", "-q")
    assert outcome.err == "nodenet: no map nmae: demo; look again\n"
    assert outcome.status == 4
    loud = items("item", "work")
    assert loud.err.splitlines()[0] == "[1/2] compile" and loud.out == ""


def test_a_terminal_gets_one_line_a_step_and_no_escape_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    steps = Steps(Globals(environ={}), clock=clock(0.0, 1.0, 2.0, 12.0, 13.0))
    with steps.step("wait") as step:
        step.waiting("the listener", 30)
        step.waiting("the listener", 30)
        step.waiting("the listener", 30)
    drawn = screen.getvalue().split("\r")
    assert drawn[1:4] == ["wait", "wait /", "wait -"]
    assert drawn[4] == "wait \\  waiting for the listener, 12 of 30 s"
    assert drawn[5].rstrip(" \n") == "wait  13.0 s" and drawn[5].endswith("\n")
    assert len(drawn[5].rstrip("\n")) == len(drawn[4])  # the longer line before is wiped
    assert "\x1b" not in screen.getvalue()


def test_a_long_wait_is_told_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(Globals(environ={}), clock=clock(0, 1, 11, 12, 13))
    with steps.step("wait") as step:
        for _ in range(3):
            step.waiting("the listener", 30)
    assert capsys.readouterr().err.splitlines() == [
        "wait",
        "wait  waiting for the listener, 11 of 30 s",
        "wait  13.0 s",
    ]
