"""Types of options."""

from __future__ import annotations

import click
import pytest

from nodenet.cli.params import COUNT, ENDPOINT, PORT, SECONDS, CountType, OneOf, SecondsType
from nodenet.endpoint import Endpoint
from nodenet.errors import UsageError

SINCE = click.Option(["--since", "-s"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("5s", 5),
        ("10m", 600),
        ("2h", 7200),
        ("3d", 259_200),
        ("1.5", 1.5),
        ("0", 0),
    ],
)
def test_seconds(text: str, seconds: float) -> None:
    assert SECONDS.convert(text, SINCE, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "ms", "5x", "-1s", "inf", "nan", "1h30m", "5 s m"])
def test_no_length_of_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a length of time in --since") as caught:
        SECONDS.convert(text, SINCE, None)
    assert caught.value.hint == "write e.g. 10s"


def test_the_least_length() -> None:
    with pytest.raises(UsageError, match=r"50ms is not a length of time of 0.1s or more"):
        SecondsType(0.1).convert("50ms", SINCE, None)


def test_one_of_and_many_of() -> None:
    one, many = OneOf("state", ["a", "b"]), OneOf("kind", ["a", "b"], many=True)
    assert one.convert("a", SINCE, None) == "a"
    assert many.convert("b,a", SINCE, None) == ("b", "a")
    with pytest.raises(UsageError, match="unknown kind c in --since"):
        many.convert("a,c", SINCE, None)


def test_port_count_endpoint() -> None:
    assert PORT.convert("65535", SINCE, None) == 65535
    with pytest.raises(UsageError, match="port 0 out of range 1-65535 in --since 0"):
        PORT.convert("0", SINCE, None)
    assert COUNT.convert("0", SINCE, None) == 0
    with pytest.raises(UsageError, match="-1 is not a number in N"):
        COUNT.convert("-1", click.Argument(["n"]), None)
    assert ENDPOINT.convert("shop/db:80", SINCE, None) == Endpoint(name="shop/db", port=80)


def test_the_least_number() -> None:
    assert CountType(1).convert("1", SINCE, None) == 1
    with pytest.raises(UsageError, match=r"^--since 0: must be at least 1$"):
        CountType(1).convert("0", SINCE, None)
    with pytest.raises(UsageError, match="is not a number in --since"):
        COUNT.convert("9" * 5000, SINCE, None)
