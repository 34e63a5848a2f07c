"""The proxy's own entry."""

from __future__ import annotations

import inspect

import pytest

from nodenet.agents.ztunnel import __main__ as entry
from nodenet.agents.ztunnel import config


def test_options_are_those_of_the_configuration() -> None:
    options = vars(entry.parser().parse_args(["run"]))
    known = set(inspect.signature(config.load).parameters)
    assert set(options) - {"verb"} == known - {"env"}


def test_an_error_is_one_line_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["run", "--id", "x", "--drain", "-1"]) == 2
    assert capsys.readouterr().err == "nodenet: --drain=-1.0: must be at least 0 seconds\n"
