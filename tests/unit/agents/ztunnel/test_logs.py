"""Lines and their budget."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Iterator

import pytest

from nodenet.agents.ztunnel.logs import LineBudget, configure


@pytest.fixture
def restored() -> Iterator[None]:
    """The logging of the test process as it was."""
    names = (None, "nodenet", "access")
    before = [(logging.getLogger(n), logging.getLogger(n).level) for n in names]
    handlers = logging.getLogger().handlers[:]
    flags = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    yield
    for logger, level in before:
        logger.setLevel(level)
    logging.getLogger().handlers[:] = handlers
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = flags


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("access", [False, True])
def test_lines_look_like_ztunnels_and_the_access_log_is_a_choice(access: bool) -> None:
    stream = io.StringIO()
    configure(logging.INFO, access=access, stream=stream)
    logging.getLogger("nodenet.agents.ztunnel.worker").info("serving %s", "a")
    logging.getLogger("nodenet.agents.ztunnel.worker").debug("not this")
    logging.getLogger("access").info("conn.id=1")
    lines = stream.getvalue().splitlines()
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
    assert re.fullmatch(moment + "\tinfo\tztunnel.worker\tserving a", lines[0])
    assert [line.split("\t")[2] for line in lines[1:]] == (["access"] if access else [])


@pytest.mark.usefixtures("restored")
def test_a_traceback_follows_its_line() -> None:
    stream = io.StringIO()
    configure(logging.INFO, access=False, stream=stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("nodenet.x").exception("it failed")
    assert stream.getvalue().splitlines()[-1] == "ValueError: why"


def test_a_flood_is_cut_off_and_counted(loop: asyncio.AbstractEventLoop) -> None:
    budget = LineBudget(loop, lines_per_second=3)
    # the loop's clock stands still while it does not run
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    assert budget.forget() == 2
    assert budget.forget() == 0
