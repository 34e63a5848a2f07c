"""Filters: what is read, what is refused, what is in force and for how long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest

from nodenet.agents.ztunnel.log_control import (
    MAX_TARGETS,
    FilterError,
    LogControl,
    LogFilter,
    Loggers,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("info", "info"),
        ("DEBUG", "debug"),
        ("warning", "warn"),
        ("debug,access=off", "debug,access=off"),
        ("access=off", "info,access=off"),
        ("off, ztunnel::pods=trace", "off,ztunnel.pods=trace"),
        ("info,debug", "debug"),
        ("access=off,xds=info,access=debug", "info,xds=info,access=debug"),
    ],
)
def test_filters_are_read_and_written(text: str, shown: str) -> None:
    assert str(LogFilter.parse(text)) == shown
    assert str(LogFilter.parse(shown)) == shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("loud", "'loud' is not a level"),
        ("", "'' is not a level"),
        ("info,", "'' is not a level"),
        ("access=", "'' is not a level"),
        ("=info", "'' is not a target"),
        ("a b=info", "'a b' is not a target"),
        ("../x=info", "'../x' is not a target"),
        (",".join(f"t{n}=info" for n in range(MAX_TARGETS + 1)), "more than 64 targets"),
    ],
)
def test_what_is_no_filter_is_refused(text: str, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        LogFilter.parse(text)
    assert reason in caught.value.reason
    assert caught.value.exit_code == 2


def test_levels_in_force() -> None:
    found = LogFilter.parse("warn,access=debug")
    assert found.number("access") == logging.DEBUG
    assert found.number("anything") == logging.WARNING
    assert LogFilter.parse("off").number("access") > logging.CRITICAL


class Applied:
    """Every filter that was put into force."""

    def __init__(self, initial: str = "info") -> None:
        self.all: list[str] = []
        self.control = LogControl(LogFilter.parse(initial), lambda f: self.all.append(str(f)))


def test_entries_are_added_and_reset_goes_back() -> None:
    applied = Applied("info,access=off")
    applied.control.change("debug", now_ns=0)
    applied.control.change("ztunnel.pods=warn", now_ns=0)
    applied.control.change(None, reset=True, now_ns=0)
    applied.control.change("error", reset=True, now_ns=0)
    assert applied.all == [
        "info,access=off",
        "debug,access=off",
        "debug,access=off,ztunnel.pods=warn",
        "info,access=off",
        "error,access=off",
    ]


def test_a_refused_change_changes_nothing() -> None:
    applied = Applied()
    for text, seconds in (("loud", None), ("debug", 0.0), ("debug", 1e9)):
        with pytest.raises(FilterError):
            applied.control.change(text, seconds=seconds, now_ns=0)
    assert applied.all == ["info"]


def test_a_change_for_a_while_goes_back_by_itself(
    loop: asyncio.AbstractEventLoop, until: Callable[[Callable[[], object]], None]
) -> None:
    applied = Applied()
    control = applied.control

    async def change() -> None:
        control.change("debug", seconds=0.25, now_ns=1_000_000_000)
        # here, where no timer can come in between
        assert control.until == "1970-01-01T00:00:01.250000Z"

    loop.run_until_complete(change())
    until(lambda: len(applied.all) == 3)
    assert applied.all == ["info", "debug", "info"]
    assert control.until is None


def test_a_later_change_stays(loop: asyncio.AbstractEventLoop) -> None:
    applied = Applied()

    async def change() -> None:
        applied.control.change("debug", seconds=0.01, now_ns=0)
        applied.control.change("warn", now_ns=0)
        await asyncio.sleep(0.03)

    loop.run_until_complete(change())
    assert applied.all == ["info", "debug", "warn"]
    assert applied.control.until is None


@pytest.fixture
def levels() -> Iterator[Callable[[str], int]]:
    """Level of a logger; all are as before afterwards."""
    names = ("nodenet", "nodenet.httpd", "nodenet.agents.ztunnel.pods")
    before = {name: logging.getLogger(name).level for name in names}
    yield lambda name: logging.getLogger(name).level
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def test_loggers_follow_and_are_let_go(levels: Callable[[str], int]) -> None:
    loggers = Loggers()
    loggers.apply(LogFilter.parse("warn,access=debug,ztunnel::pods=debug,nodenet.httpd=error"))
    assert levels("nodenet") == logging.WARNING
    assert levels("nodenet.agents.ztunnel.pods") == logging.DEBUG
    assert levels("nodenet.httpd") == logging.ERROR
    loggers.apply(LogFilter.parse("info"))
    assert levels("nodenet") == logging.INFO
    assert levels("nodenet.agents.ztunnel.pods") == logging.NOTSET
    assert levels("nodenet.httpd") == logging.NOTSET
