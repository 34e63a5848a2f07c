"""Settings in the forms of ztunnel's environment variables."""

from __future__ import annotations

import pytest

from nodenet.agents.ztunnel import variables
from nodenet.agents.ztunnel.variables import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("100ms", 0.1),
        ("1.5s", 1.5),
        ("1h2m3s4ms", 3723.004),
        ("2m500ms", 120.5),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert variables.duration({"V": text}, "V", 1.0) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", "ten", "-1s", "1s1h", "1 s", "1e3s", "٣s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration") as caught:
        variables.duration({"V": text}, "V", 1.0)
    assert caught.value.name == "V" and caught.value.value == text


def test_a_duration_that_is_too_short() -> None:
    with pytest.raises(ConfigError, match="at least 1 seconds"):
        variables.duration({"V": "999ms"}, "V", 10.0, least=1.0)
    assert variables.duration({"V": "0s"}, "V", 10.0, least=0.0) == 0.0


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("65535", 65535), ("007", 7)])
def test_a_number(text: str, value: int) -> None:
    assert variables.number({"V": text}, "V", 100, most=65535) == value


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", "1.5", "ten", "²", "1_000"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ConfigError, match="a number from 1 to 65535"):
        variables.number({"V": text}, "V", 100, most=65535)


def test_a_switch() -> None:
    assert variables.switch({"V": "true"}, "V", False)
    assert not variables.switch({"V": "false"}, "V", True)
    for text in ("", "1", "True", "yes"):
        with pytest.raises(ConfigError, match="true or false"):
            variables.switch({"V": text}, "V", False)


def test_what_is_not_set_has_its_default() -> None:
    assert variables.duration({}, "V", 7.5) == 7.5
    assert variables.number({}, "V", 100, most=200) == 100
    assert variables.switch({}, "V", True)
