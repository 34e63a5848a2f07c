"""conn top on a terminal and off it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodenet.capture.records import PodRecord
from nodenet.paths import Instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = str(Path(sys.executable).with_name("nodenet"))
Enrol = Callable[..., PodRecord]


class Terminal:
    """A command on a pseudo terminal of 80 by 24."""

    def __init__(self, *argv: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.child = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"}
        )
        self.seen = ""

    def until(self, pattern: str) -> str:
        """What was written up to a text, from where the last one ended."""
        end = time.monotonic() + 60
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65536).decode()
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def press(self, keys: str) -> None:
        """Types."""
        os.write(self.master, keys.encode())

    def close(self) -> None:
        """Kills it if it has not ended."""
        self.child.kill()
        self.child.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(scene: Any, enrol: Enrol, instance: Instance) -> Iterator[Callable[..., Terminal]]:
    """Starts ``conn top`` on a terminal, with one connection there."""
    enrol()
    scene.pair()
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(NODENET, "--id", instance.id or "", "conn", "top", *words))
        return opened[-1]

    try:
        yield start
    finally:
        for one in opened:
            one.close()


def test_keys_on_a_screen(terminal: Callable[..., Terminal]) -> None:
    top = terminal("-w", "0.2")
    assert "\x1b[?1049h" in top.until(r"by peer, sorted by bytes")
    top.until(r"t/pod +10\.99\.0\.2:8080 +out +1")
    top.press("g")
    top.until(r"by conn, ")
    top.until(r"ID +POD +PEER")
    top.press("s")
    top.until(r"sorted by connections")
    top.press("/nope\r")
    top.until(r"/nope ")
    top.press("\x1b")
    top.until(r"t/pod")
    top.press("p")
    top.until(r", paused")
    top.press("q")
    top.until(r"\x1b\[\?1049l")
    assert top.child.wait(60) == 0
    assert termios.tcgetattr(top.slave) == top.before


def test_interrupted_it_leaves_the_terminal_as_it_was(
    terminal: Callable[..., Terminal],
) -> None:
    top = terminal("-w", "0.2")
    top.until(r"t/pod")
    top.child.send_signal(2)
    top.until(r"\x1b\[\?1049l")
    assert top.child.wait(60) == 0
    assert termios.tcgetattr(top.slave) == top.before


def test_rounds_on_a_terminal_are_plain_text(terminal: Callable[..., Terminal]) -> None:
    top = terminal("-n", "2", "-w", "0.1")
    text = top.until(r"(?s)RETR/s.*RETR/s.*t/pod[^\n]*\n")
    assert "\x1b" not in text
    assert top.child.wait(60) == 0


def test_off_a_terminal_one_round(scene: Any, enrol: Enrol, nodenet: Any) -> None:
    enrol()
    _client, server = scene.pair()
    lines = nodenet("conn", "top", "-w", "0.1").stdout.splitlines()
    assert lines[0].startswith("1 connections  out ") and len(lines) == 3
    assert lines[2].split()[:4] == ["t/pod", "10.99.0.2:8080", "out", "1"]


def test_rates_are_what_was_sent(scene: Any, enrol: Enrol, instance: Instance) -> None:
    """JSON Lines, a round each: the sum of rates times their length is every byte."""
    enrol()
    client, server = scene.pair()
    words = ("conn", "top", "-j", "-w", "0.2", "-n", "500", "--by", "conn")
    child = subprocess.Popen(
        [NODENET, "--id", instance.id or "", *words], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    sent = 0
    try:
        first = json.loads(child.stdout.readline())
        for _ in range(50):
            client.sendall(b"x" * 10_000)
            sent += 10_000
            server.recv(10_000)
        rows = [first]
        # until everything has been seen, and two rounds more in which nothing may be added
        last = None
        while last is None or len(rows) < last + 2:
            rows.append(json.loads(child.stdout.readline()))
            if last is None and _moved(rows) >= 0.999 * sent:
                last = len(rows)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert {row["pod"] for row in rows} == {"t/pod"}
    assert _moved(rows) == pytest.approx(sent, rel=0.001)


def test_as_many_rounds_as_asked_for(scene: Any, enrol: Enrol, nodenet: Any) -> None:
    enrol()
    _pair = scene.pair()
    words = ("conn", "top", "-j", "-w", "0.1", "-n", "5", "--by", "conn")
    assert len(nodenet(*words).stdout.splitlines()) == 5


def _moved(rows: list[dict[str, Any]]) -> float:
    """The bytes that the rates of all rounds but the first stand for."""
    times = [_seconds(row["time"]) for row in rows]
    lengths = [b - a for a, b in zip(times, times[1:], strict=False)]
    return sum(
        float(row["rate_bytes_sent_per_s"]) * s for row, s in zip(rows[1:], lengths, strict=True)
    )


def _seconds(moment: str) -> float:
    from nodenet.times import parse_rfc3339

    return parse_rfc3339(moment).timestamp()
