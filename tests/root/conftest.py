"""Fixtures of the privileged tests: namespaces, a loaded capture, a recording proxy.

Everything has a random name and is removed at the end, also after a failure; the session fails
when something is left behind (`tests.root.leftovers`). Function scope is cheap: a capture loads in
25 ms, namespaces take 50 ms. A whole world with pod, node and outside is `tests.root.world`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from nodenet.capture.session import Capture
from nodenet.lab.topology import Topology
from nodenet.paths import Instance
from tests.root.leftovers import Watch
from tests.root.world import World, loaded_capture, random_instance

_WATCH = pytest.StashKey[Watch]()
_LEFT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Also called when this file is found only while collecting: before any privileged test."""
    if os.geteuid() == 0:
        config.stash[_WATCH] = Watch()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that leaves something behind has failed.

    Last: after an interrupt, or the first failure with ``-x``, pytest ends fixtures only here.
    """
    watch = session.config.stash.get(_WATCH, None)
    left = watch.left_behind() if watch else []
    session.config.stash[_LEFT] = left
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names what was left behind."""
    left = terminalreporter.config.stash.get(_LEFT, [])
    if left:
        terminalreporter.section("left behind by the privileged tests", red=True)
        for line in left:
            terminalreporter.line(line)


@pytest.fixture
def instance() -> Instance:
    """An instance name nobody has; nothing is made."""
    return random_instance()


@pytest.fixture
def capture(instance: Instance) -> Iterator[Capture]:
    """The capture, loaded and attached on an instance of its own."""
    with loaded_capture(instance) as capture:
        yield capture


@pytest.fixture
def topology() -> Iterator[Topology]:
    """Network namespaces under a random prefix."""
    with Topology() as made:
        yield made


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Pod, node and outside with recorders, the pod enrolled on the ebpf backend."""
    with World("ebpf") as made:
        yield made
