"""When a namespace counts as gone. Any file will do for a path: only its inode is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodenet.agents.ztunnel import namespaces
from nodenet.agents.ztunnel.namespaces import NamespaceWatch, user_of
from nodenet.kernel.inotify import Inotify

Until = Callable[[Callable[[], object]], None]


class Watched:
    """A watch with its inotify on a loop, and what it has said."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.gone: list[int] = []
        self.inotify = Inotify()
        self.watch = NamespaceWatch(loop, self.inotify, self.gone.append)
        loop.add_reader(self.inotify.fileno(), self._events)

    def _events(self) -> None:
        for event in self.inotify.read():
            self.watch.on_event(event)


@pytest.fixture
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[Watched]:
    """A watch that is closed, and leaves no descriptor."""
    before = len(os.listdir("/proc/self/fd"))
    made = Watched(loop)
    yield made
    made.watch.close()
    loop.remove_reader(made.inotify.fileno())
    made.inotify.close()
    assert len(os.listdir("/proc/self/fd")) == before


def watches_a_process() -> bool:
    """Whether this process has a pidfd."""
    with os.scandir("/proc/self/fd") as entries:
        links = [e.path for e in entries if e.is_symlink()]
    found = False
    for link in links:
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found |= "pidfd" in os.readlink(link)
    return found


def name(directory: Path, text: str = "ns") -> tuple[str, int]:
    path = directory / text
    path.touch()
    return str(path), path.stat().st_ino


def test_a_name_that_goes_is_told_once_and_others_are_not(
    watched: Watched, until: Until, tmp_path: Path
) -> None:
    one, other = name(tmp_path, "one"), name(tmp_path, "other")
    watched.watch.watch(1, *one)
    watched.watch.watch(2, *other)
    os.unlink(one[0])
    until(lambda: watched.gone)
    os.unlink(other[0])
    until(lambda: len(watched.gone) == 2)
    assert watched.gone == [1, 2]


def test_a_name_that_leads_elsewhere_is_gone(
    watched: Watched, until: Until, tmp_path: Path
) -> None:
    path, inode = name(tmp_path)
    watched.watch.watch(1, path, inode)
    name(tmp_path, "new")
    os.rename(tmp_path / "new", path)
    until(lambda: watched.gone == [1])


def test_one_that_went_before_it_was_watched(
    watched: Watched, until: Until, tmp_path: Path
) -> None:
    path, inode = name(tmp_path / ".." / tmp_path.name)
    os.unlink(path)
    watched.watch.watch(1, path, inode)
    watched.watch.watch(2, str(tmp_path / "no" / "such"), 5)
    until(lambda: sorted(watched.gone) == [1, 2])


def test_a_directory_that_goes_takes_its_names_along(
    watched: Watched, until: Until, tmp_path: Path
) -> None:
    directory = tmp_path / "below"
    directory.mkdir()
    path, inode = name(directory)
    watched.watch.watch(1, path, inode)
    os.unlink(path)
    directory.rmdir()
    until(lambda: watched.gone == [1])


def test_a_process_that_ends_takes_its_path_along(watched: Watched, until: Until) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        path = f"/proc/{process.pid}/comm"
        watched.watch.watch(1, path, os.stat(path).st_ino)
        process.kill()
        process.wait()
        until(lambda: watched.gone == [1])


def test_forgotten_ones_are_not_told(watched: Watched, until: Until, tmp_path: Path) -> None:
    one, other = name(tmp_path, "one"), name(tmp_path, "other")
    watched.watch.watch(1, *one)
    watched.watch.watch(2, *other)
    watched.watch.forget(1)
    watched.watch.forget(1)
    os.unlink(one[0])
    os.unlink(other[0])
    until(lambda: watched.gone)
    assert watched.gone == [2]


def test_a_namespace_still_used_is_looked_at_again(
    watched: Watched, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users: list[str | None] = ["/other/path", "/other/path", None]
    monkeypatch.setattr(namespaces, "RECHECK_SECONDS", 0.01)
    monkeypatch.setattr(namespaces, "user_of", lambda inode: users.pop(0))
    path, inode = name(tmp_path)
    watched.watch.watch(1, path, inode)
    os.unlink(path)
    until(lambda: watched.gone == [1])
    assert users == []


def test_the_end_of_its_last_process_is_a_reason_to_look(
    watched: Watched, until: Until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        users: list[int | None] = [process.pid, None]
        looked: list[int] = []

        def user(inode: int) -> int | None:
            looked.append(inode)
            return users.pop(0)

        monkeypatch.setattr(namespaces, "user_of", user)
        path, inode = name(tmp_path)
        watched.watch.watch(1, path, inode)
        os.unlink(path)
        until(lambda: looked and watches_a_process())
        assert not watched.gone
        process.kill()
        process.wait()
        until(lambda: watched.gone == [1])


def test_users_are_processes_but_not_this_one() -> None:
    inode = os.stat("/proc/self/ns/net").st_ino
    with subprocess.Popen(["sleep", "60"]) as process:
        found = user_of(inode)
        assert isinstance(found, int) and found != os.getpid()
        process.kill()
    assert user_of(1) is None
