"""Lines on their way through a pipe: whole, in order, counted when they are lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from nodenet.agents.ztunnel.log_writer import LineWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Read and write end; what a test closes is no matter."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            pass


def _read_all(fd: int) -> bytes:
    found = b""
    while piece := os.read(fd, 65536):
        found += piece
    return found


def test_lines_arrive_in_order_and_whole(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    wanted = [b"line %d\n" % n for n in range(20_000)]
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(_read_all(reader)))
    thread.start()
    with LineWriter(fd, max_lines=len(wanted)) as writer:
        for line in wanted:
            writer.put(line)
    os.close(fd)
    thread.join()
    assert found == [b"".join(wanted)]


@pytest.mark.parametrize("as_json", [False, True])
def test_who_does_not_read_costs_lines_and_not_time(pipe: tuple[int, int], as_json: bool) -> None:
    reader, fd = pipe
    writer = LineWriter(fd, max_lines=100, as_json=as_json)
    line = b"x" * 1023 + b"\n"
    # far more than a pipe and the queue take
    for _ in range(5000):
        writer.put(line)
    assert not writer.put(line)
    lost = writer.dropped
    assert 4000 < lost <= 5000
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(_read_all(reader)))
    thread.start()
    writer.close()
    os.close(fd)
    thread.join()
    lines = found[0].splitlines()
    assert lines.count(line[:-1]) == 5001 - lost
    assert b"%d log lines were lost" % lost in lines[-1]
    assert lines[-1].startswith(b"{") is as_json


def test_closing_does_not_wait_for_ever(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = LineWriter(fd)
    for _ in range(200):
        writer.put(b"x" * 1023 + b"\n")
    began = time.monotonic()
    assert not writer.close(0.05)  # the thread hangs in write(2)
    assert 0.05 <= time.monotonic() - began < 5
    # its write fails now: the thread must not be left to the next test, whose pipe has this number
    os.close(reader)
    assert writer.close(30)


def test_a_closed_reader_is_no_error(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    os.close(reader)
    writer = LineWriter(fd)
    assert writer.put(b"a\n")
    writer.close()
    assert writer.dropped == 1


def test_lines_come_without_closing(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    with LineWriter(fd) as writer:
        for _ in range(3):  # the thread sleeps in between
            writer.put(b"now\n")
            assert os.read(reader, 100) == b"now\n"
