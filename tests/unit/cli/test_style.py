"""When there is colour."""

from __future__ import annotations

import io
import sys

import pytest

from nodenet.cli.style import Style, of_stdout, wants_colour


@pytest.mark.parametrize(
    ("choice", "environ", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1", "TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour_rules(choice: str, environ: dict[str, str], terminal: bool, expected: bool) -> None:
    assert wants_colour(choice, environ, terminal) is expected


def test_only_state_words_are_painted() -> None:
    style = Style(colour=True)
    assert style.paint("ok") == "\x1b[32mok\x1b[0m"
    assert style.paint("FAIL") == "\x1b[31mFAIL\x1b[0m"
    assert style.paint("degraded", "2 of 3") == "\x1b[33m2 of 3\x1b[0m"
    assert style.paint("15006 down") == "\x1b[31m15006 down\x1b[0m"
    assert style.paint("cart") == "cart"
    assert Style(colour=False).paint("ok") == "ok"


@pytest.mark.parametrize(("encoding", "sign"), [("utf-8", "…"), ("ascii", "~"), ("latin-1", "~")])
def test_a_pipe_has_no_width_and_the_encoding_decides_the_ellipsis(
    monkeypatch: pytest.MonkeyPatch, encoding: str, sign: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    style = of_stdout(choice="auto", environ={}, headers=True, wide=False, exact=False)
    assert style.width is None
    assert not style.colour and not style.redraw
    assert style.ellipsis == sign


@pytest.mark.parametrize(
    ("environ", "dot"),
    [
        ({}, "·"), ({"LANG": "C"}, "-"), ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, "-"),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, "·"), ({"LC_CTYPE": "POSIX"}, "-"),
    ],
)  # fmt: skip
def test_whoever_asks_for_the_c_locale_gets_ascii(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], dot: str
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    style = of_stdout(choice="auto", environ=environ, headers=True, wide=False, exact=False)
    assert (style.dot, style.ellipsis) == (dot, "…" if dot == "·" else "~")
