"""What holds for every command that reads: JSON, pipes, colours, widths, dead daemons."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodenet.capture.options import EnrolOptions
from nodenet.capture.records import ExcludedPort
from nodenet.lab.topology import Topology
from nodenet.paths import Instance
from tests.root.world import loaded_capture, random_instance

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NODENET = str(Path(sys.executable).with_name("nodenet"))

#: Every verb that reads and what it needs behind it.
READS = (
    ("capture", "show"),
    ("capture", "show", "--counters"),
    ("capture", "verify"),
    ("capture", "explain", "shop/cart-7d9f6b", "203.0.113.7:80"),
    ("conn", "list"),
    ("conn", "list", "--all"),
    ("conn", "list", "--closed"),
    ("conn", "summary"),
    ("conn", "top", "-n", "1"),
    ("prog", "show"),
    ("map", "show"),
    ("map", "dump", "pods"),
    ("map", "dump", "lips"),
    ("map", "dump", "stat"),
    ("doctor",),
    ("version",),
)
LISTS = {"capture show", "conn list", "prog show", "map show", "map dump"}


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    """One enrolled pod with live, closed and refused connections, and no daemon at all."""
    chosen = random_instance()
    with Topology() as made, loaded_capture(chosen) as capture:
        pod, outside = made.pair()
        with outside.entered():
            server = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True)
        options = EnrolOptions(exclude_ports=(ExcludedPort("out", 80),))
        capture.enroll(pod.path, name="shop/cart-7d9f6b", options=options)
        with server, contextlib.ExitStack() as held:
            for host in ("10.99.0.2", "fd99::2"):
                for keep in (True, False):
                    with pod.entered():
                        client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                    client.connect((host, 80))
                    accepted, _ = server.accept()
                    accepted.sendall(bytes(5000))
                    if keep:
                        held.enter_context(client)
                        held.enter_context(accepted)
                    else:
                        client.close()
                        accepted.close()
            with pod.entered():
                refused = socket.socket()
            with refused:
                assert refused.connect_ex(("10.99.0.2", 81)) != 0
            yield chosen


def run(instance: Instance, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with pipes for its output."""
    return subprocess.run(
        [NODENET, "--id", instance.id or "", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("words", [w for w in READS if w[:2] != ("conn", "top")], ids=" ".join)
def test_json_is_one_document_and_pretty_is_the_same(
    instance: Instance, words: tuple[str, ...]
) -> None:
    plain = run(instance, *words, "-j")
    assert plain.returncode in (0, 1), plain.stderr
    answer = json.loads(plain.stdout)
    if " ".join(words[:2]) in LISTS:
        assert isinstance(answer, list)
        assert answer, "the fixture should have something to list"
    pretty = run(instance, *words, "-p")
    again = json.loads(pretty.stdout)
    assert type(again) is type(answer)
    if isinstance(answer, list) and answer and isinstance(answer[0], dict):
        assert set(again[0]) == set(answer[0])
    assert pretty.stdout.count("\n") > plain.stdout.count("\n") or answer in ([], {})


def test_a_stream_is_json_lines(instance: Instance) -> None:
    done = run(instance, "conn", "top", "-n", "1", "-j")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["pod"] for row in rows} == {"shop/cart-7d9f6b"}
    assert all("rate_bytes_sent_per_s" in row for row in rows)


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_no_escape_byte_where_nobody_wants_colours(
    instance: Instance, words: tuple[str, ...]
) -> None:
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
        done = run(instance, *words, **environment)
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_a_reader_that_leaves_early_sees_no_traceback(
    instance: Instance, words: tuple[str, ...]
) -> None:
    command = [NODENET, "--id", instance.id or "", *words, "-j"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    with child.stderr:
        assert child.stderr.read() == b""
    assert child.wait(60) in (0, 1, 141)


@pytest.mark.parametrize(
    "words",
    [w for w in READS if " ".join(w[:2]) in LISTS and "--counters" not in w],
    ids=" ".join,
)
def test_tables_fit_eighty_columns(instance: Instance, words: tuple[str, ...]) -> None:
    lines = on_terminal(instance, *words, columns=80)
    assert len(lines) > 1
    for line in lines:
        # an address is never cut, so a line may be longer only for one
        assert len(line) <= 80 or "[fd99::" in line or "fd99::" in line, line


def on_terminal(instance: Instance, *words: str, columns: int) -> list[str]:
    """What the command prints on a terminal of that width, without colour."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    with subprocess.Popen(
        [NODENET, "--id", instance.id or "", *words],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    ) as child:
        os.close(terminal)
        data = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(controller, 1 << 16):
                data += chunk
        os.close(controller)
        child.wait(60)
    return data.decode().replace("\r", "").splitlines()


def test_an_empty_list_is_an_empty_array_and_no_failure(instance: Instance) -> None:
    done = run(instance, "conn", "list", "--pod", "shop/cart", "--port", "9", "-j")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    failing = run(instance, "conn", "list", "--port", "9", "--fail-empty", "-j")
    assert failing.returncode == 4
    assert json.loads(failing.stdout)["exit"] == 4


def test_an_unknown_word_lists_those_there_are(instance: Instance) -> None:
    done = run(instance, "conn", "list", "--state", "CLOSING_WAIT")
    assert done.returncode == 2
    assert done.stderr.startswith("nodenet: unknown state CLOSING_WAIT in --state; one of: ")
    done = run(instance, "c", "list")
    assert done.returncode == 2
    assert "capture" in done.stderr and "conn" in done.stderr


def test_what_was_refused_is_counted_and_shown(instance: Instance) -> None:
    (row,) = json.loads(run(instance, "capture", "show", "-j").stdout)
    assert row["counters"] == {
        "captured_out": 0,
        "captured_in": 0,
        "bypassed": 4,
        "refused": 1,
        "rows": {"O6 excluded-port": 4, "O7 proxy-down": 0},
    }


def test_connections_say_why_they_were_not_captured(instance: Instance) -> None:
    rows = json.loads(run(instance, "conn", "list", "--via", "none", "-j").stdout)
    assert {(r["rule"], r["reason"], r["bytes_received"]) for r in rows} == {
        ("O6", "excluded-port", 5000)
    }
    assert {r["family"] for r in rows} == {4, 6}
