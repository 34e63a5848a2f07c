"""The konnectivity benchmark's arithmetic, and the remote that its tunnels lead to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import _tunnel_scenes as scenes
from bench._samples import Samples
from bench._tunnel_rate import rate
from bench._tunnel_scenes import GO, OURS
from bench.konnectivity import SECTIONS, floors

ROOT = Path(__file__).parents[3]


def test_rates() -> None:
    found = rate([0.001] * 98 + [0.002, 0.003], 2.0)
    assert found.count == 100 and found.per_second == 50 and found.p50_us == pytest.approx(1000)
    assert 2000 <= found.p99_us <= 3000
    assert rate([], 2.0).per_second == 0 and rate([1.0], 2.0).per_second == 0.5


def test_floors_are_those_of_the_sections_that_ran() -> None:
    samples = Samples(baseline=GO)
    for variant, value in ((GO, 100.0), (OURS, 120.0)):
        samples.record(scenes.TRIPS, scenes.TRIP_P50, "us", variant, value)
    (floor,) = floors(samples, frozenset({"trips"}))
    assert (floor.sense, floor.wanted, floor.got) == ("<=", 1.3, 1.2) and floor.ok
    assert "mixed" in SECTIONS and floors(samples, frozenset({"idle", "mixed"})) == []


def test_the_cpu_of_a_process_is_told_to_the_nanosecond() -> None:
    before = time.process_time()
    found = scenes._cpu(os.getpid())
    assert before <= found <= time.process_time()


@pytest.fixture
def remote() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench._tunnel_remote"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(60) == 0


def test_what_a_remote_does_on_command(remote: int) -> None:
    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", remote), 10)

    with connect() as sock:
        sock.sendall(b"ehello")
        assert sock.recv(5, socket.MSG_WAITALL) == b"hello"
    with connect() as sock:
        size = 3 << 20
        sock.sendall(b"u" + size.to_bytes(8, "big") + bytes(size))
        assert sock.recv(1) == b"k"
    with connect() as sock:
        sock.sendall(b"d" + size.to_bytes(8, "big")[:3])
        sock.sendall(size.to_bytes(8, "big")[3:])
        got = 0
        while got < size:
            got += len(sock.recv(1 << 20))
        assert got == size
    with connect() as silent, connect() as release:
        silent.sendall(b"x" + bytes(1000))
        with pytest.raises(TimeoutError):
            silent.settimeout(0.2)
            silent.recv(1)
        release.sendall(b"r")
        assert release.recv(1) == b""
        silent.settimeout(10)
        assert silent.recv(1) == b""
